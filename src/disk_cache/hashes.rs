//! SHA-256 of files, remembered: files that are still the same are not read again.
//!
//! One file for each answer, `hashes/<SHA-256 of the question>`, which holds question and answer. The question is the
//! files' paths with all that changes when their content does. So processes do not get into each other's way, and what is
//! damaged or of somebody else's question is no answer.

use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::{DiskCache, write_with_folders};
use crate::error::{Error, Result};

/// A file may change twice within a tick of its clock, which for some file systems is two seconds: what changed as lately
/// as that is not remembered.
const TICK: Duration = Duration::from_secs(2);
/// Answers that are kept; beyond, the oldest go.
const MOST: usize = 1000;

/// A file, pinned to its state when it was opened.
#[derive(Clone, Debug)]
pub struct PinnedFile {
    path: PathBuf,
    identity: FileIdentity,
}

/// Properties that show if a path still names the same, unchanged file.
#[derive(Clone, Debug, PartialEq)]
struct FileIdentity {
    len: u64,
    modified: Option<SystemTime>,
    /// Device and number on it, where there are such.
    node: Option<(u64, u64)>,
}

impl PinnedFile {
    /// The file that is at `path` now.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn at(path: &Path) -> Result<Self> {
        let path = fs::canonicalize(path).map_err(Error::io("open", path))?;
        let metadata = fs::metadata(&path).map_err(Error::io("open", &path))?;
        Ok(Self { identity: FileIdentity::of(&metadata), path })
    }

    /// The size in bytes.
    pub(super) fn len(&self) -> u64 {
        self.identity.len
    }

    /// Checks that the path still leads to this file, and that it is unchanged.
    ///
    /// # Errors
    /// If it has changed or is gone.
    pub fn check_unchanged(&self) -> Result<()> {
        let metadata = fs::metadata(&self.path).map_err(Error::io("open", &self.path))?;
        if FileIdentity::of(&metadata) == self.identity { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> Error {
        let problem = "the file changed during the run; stop the program that writes to it, and run again";
        Error::io("hash", &self.path)(io::Error::other(problem))
    }

    /// Adds the content to a hash. It is read, not mapped: beside a run that maps the same file no memory fills up.
    fn read_into(&self, hash: &mut Sha256) -> Result<()> {
        let io = |error| Error::io("hash", &self.path)(error);
        let mut file = File::open(&self.path).map_err(io)?;
        let is_same = |file: &File| Ok(FileIdentity::of(&file.metadata()?) == self.identity);
        let before = is_same(&file).map_err(io)?;
        let read = update(hash, &mut file).map_err(io)?;
        match before && read == self.identity.len && is_same(&file).map_err(io)? {
            true => Ok(()),
            false => Err(self.changed()),
        }
    }

    /// The file in a question; `None` where no change would show, or one was too late to be told from the next.
    fn asked(&self) -> Option<String> {
        let metadata = fs::metadata(&self.path).ok().filter(|now| FileIdentity::of(now) == self.identity)?;
        let changed = stamps(&metadata)?;
        let settled = |at: &SystemTime| SystemTime::now().duration_since(*at).is_ok_and(|age| age > TICK);
        if !changed.iter().all(settled) {
            return None;
        }
        let since =
            |at: &SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).ok().map(|age| age.as_nanos());
        let [modified, status] = [since(&changed[0])?, since(&changed[1])?];
        let (device, node) = self.identity.node?;
        Some(format!("{:?} {} {modified} {status} {device} {node}", self.path, self.identity.len))
    }
}

impl FileIdentity {
    fn of(metadata: &Metadata) -> Self {
        Self { len: metadata.len(), modified: metadata.modified().ok(), node: node(metadata) }
    }
}

impl DiskCache {
    /// SHA-256 of files, one behind the other, in hexadecimal.
    ///
    /// # Errors
    /// If one cannot be read, or has changed since it was pinned.
    pub fn sha256(&self, files: &[PinnedFile]) -> Result<String> {
        let place = self.place(files);
        if let Some(known) = place.as_ref().and_then(|(path, question)| recall(path, question)) {
            return Ok(known);
        }
        let mut hash = Sha256::new();
        files.iter().try_for_each(|file| file.read_into(&mut hash))?;
        let found = hex::encode(hash.finalize());
        // What was asked before is what was read: each file was found unchanged behind its last byte.
        if let Some((path, question)) = place {
            let remembered = write_with_folders(&path, format!("{question}{found}\n").as_bytes());
            _ = remembered.and_then(|()| forget_oldest(path.parent().unwrap_or(&path))); // else it is computed again
        }
        Ok(found)
    }

    /// Returns the path of a cached hash and its question; `None` if the hash must not be cached.
    fn place(&self, files: &[PinnedFile]) -> Option<(PathBuf, String)> {
        let mut question =
            String::from("SHA-256 of these files, by size, times of changes, device and node\n");
        for file in files {
            writeln!(question, "{}", file.asked()?).ok()?;
        }
        let name = hex::encode(Sha256::new_with_prefix(&question).finalize());
        Some((self.folder.as_ref()?.join("hashes").join(name), question))
    }
}

fn recall(path: &Path, question: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let answer = text.strip_prefix(question)?.strip_suffix('\n')?;
    let is_hash = answer.len() == 64 && answer.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hash.then(|| answer.to_owned())
}

fn forget_oldest(folder: &Path) -> io::Result<()> {
    let mut kept = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        kept.push((entry.metadata()?.modified()?, entry.path()));
    }
    kept.sort();
    kept.iter().take(kept.len().saturating_sub(MOST)).try_for_each(|(_, path)| fs::remove_file(path))
}

/// The hash of what was added and of all that can be read, in hexadecimal.
///
/// # Errors
/// If it cannot be read.
pub fn hash_of(mut hash: impl Digest, bytes: &mut impl Read) -> io::Result<String> {
    update(&mut hash, bytes)?;
    Ok(hex::encode(hash.finalize()))
}

/// Adds all bytes to the hash and returns their number.
fn update(hash: &mut impl Digest, bytes: &mut impl Read) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    loop {
        let read = bytes.read(&mut buffer)?;
        if read == 0 {
            return Ok(total);
        }
        hash.update(&buffer[..read]);
        total += read as u64;
    }
}

/// Returns the time of the last change of the content, which any program can set, and of the last change of the
/// file's metadata.
#[cfg(unix)]
fn stamps(metadata: &Metadata) -> Option<[SystemTime; 2]> {
    use std::os::unix::fs::MetadataExt;
    let seconds = Duration::from_secs(metadata.ctime().try_into().ok()?);
    let rest = Duration::from_nanos(metadata.ctime_nsec().try_into().ok()?);
    Some([metadata.modified().ok()?, SystemTime::UNIX_EPOCH + seconds + rest])
}

#[cfg(unix)]
fn node(metadata: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn stamps(_: &Metadata) -> Option<[SystemTime; 2]> {
    None
}

#[cfg(not(unix))]
fn node(_: &Metadata) -> Option<(u64, u64)> {
    None
}
