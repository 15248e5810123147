//! Cache of file hashes (SHA-256), so that unchanged files are not read again.
//!
//! Each hash has its own file, `hashes/<SHA-256 of the key>`, which contains the key and the hash. The key consists
//! of the paths of the hashed files, and of metadata that changes when their content changes. Processes therefore
//! cannot disturb each other, and a damaged or foreign cache file is ignored.

use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::{DiskCache, write_with_folders};
use crate::error::{Error, Result};

/// Coarsest resolution of a file system's timestamps. Two changes within this time may have the same timestamp, so
/// the hash of a file that changed this recently is not cached.
const TICK: Duration = Duration::from_secs(2);
/// Maximum number of cached hashes; the oldest ones are deleted.
const MOST: usize = 1000;

/// A file, pinned to its state when it was opened.
#[derive(Clone, Debug)]
pub struct PinnedFile {
    path: PathBuf,
    identity: FileIdentity,
}

/// Properties that show whether a path still names the same, unchanged file.
#[derive(Clone, Debug, PartialEq)]
struct FileIdentity {
    len: u64,
    modified: Option<SystemTime>,
    /// Device and inode number, if the system has them.
    node: Option<(u64, u64)>,
}

impl PinnedFile {
    /// Pins the file that is at `path` now.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn at(path: &Path) -> Result<Self> {
        let path = fs::canonicalize(path).map_err(Error::io("open", path))?;
        let metadata = fs::metadata(&path).map_err(Error::io("open", &path))?;
        Ok(Self { identity: FileIdentity::of(&metadata), path })
    }

    /// Returns the size in bytes.
    pub(super) fn len(&self) -> u64 {
        self.identity.len
    }

    /// Checks that the path still leads to this file, and that the file is unchanged.
    ///
    /// # Errors
    /// If the file has changed or no longer exists.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let metadata = fs::metadata(&self.path).map_err(Error::io("open", &self.path))?;
        if FileIdentity::of(&metadata) == self.identity { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> Error {
        let problem = "the file changed during the run; stop the program that writes to it, and run again";
        Error::io("hash", &self.path)(io::Error::other(problem))
    }

    /// Adds the content to a hash. The file is read instead of mapped, so that it does not add to the memory
    /// of a run that maps the same file.
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

    /// Returns the file's part of a cache key; `None` if a change of the file might not be noticed.
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
    /// Returns the SHA-256 of concatenated files, in hexadecimal.
    ///
    /// # Errors
    /// If a file cannot be read, or has changed since it was pinned.
    pub fn sha256(&self, files: &[PinnedFile]) -> Result<String> {
        let place = self.place(files);
        if let Some(known) = place.as_ref().and_then(|(path, question)| recall(path, question)) {
            return Ok(known);
        }
        let mut hash = Sha256::new();
        files.iter().try_for_each(|file| file.read_into(&mut hash))?;
        let found = hex::encode(hash.finalize());
        // The key is valid for the bytes that were read: each file was unchanged after its last byte was
        // read.
        if let Some((path, question)) = place {
            let remembered = write_with_folders(&path, format!("{question}{found}\n").as_bytes());
            _ = remembered.and_then(|()| forget_oldest(path.parent().unwrap_or(&path))); // errors are harmless
        }
        Ok(found)
    }

    /// Returns the path of a cached hash and its key; `None` if the hash must not be cached.
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

/// Returns the hash of everything added so far and of all remaining bytes, in hexadecimal.
///
/// # Errors
/// If the bytes cannot be read.
pub(crate) fn hash_of(mut hash: impl Digest, bytes: &mut impl Read) -> io::Result<String> {
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

/// Returns two times: the last change of the content, which any program can set, and the last change of the file's
/// metadata.
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
