//! Atomic writing: files and folders have a temporary name until they are complete.
//!
//! Unfinished files are deleted when they are dropped and when a signal ends the program. The next program that writes
//! into the same folder deletes the files of a killed program: files in use are locked, and a lock ends with its
//! process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use tempfile::{NamedTempFile, TempDir};

use crate::shutdown;

/// Prefix of temporary names. Random letters and digits follow, then the suffix.
const PREFIX: &str = ".xcheck-";
const SUFFIX: &str = ".unfinished";
const RANDOM: usize = 6;
/// Age up to which an unlocked file may still be in use by the process that created it.
const BEGINNING: Duration = Duration::from_secs(2);

/// Unfinished files of this program, for the thread that handles signals. The lock is held while a file is renamed.
static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn made() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A locked path in [`made`], removed from it on drop.
#[derive(Debug)]
struct TrackedPath {
    path: PathBuf,
    _lock: Option<File>,
}

impl TrackedPath {
    /// Creates a file or folder and registers its path. Signals are handled only after the registration.
    fn begun<T>(make: impl FnOnce() -> io::Result<T>, path: impl Fn(&T) -> &Path) -> io::Result<(T, Self)> {
        static WATCH: Once = Once::new();
        // Without signal handling, the next program deletes the files of this one.
        WATCH.call_once(|| _ = shutdown::before(remove_all));
        let mut made = made();
        let begun = make()?;
        let path = path(&begun);
        // The folder itself is locked. On systems without folder locks, nothing is swept.
        let lock = File::open(path).ok().filter(|handle| handle.lock().is_ok());
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        made.insert(path.clone());
        Ok((begun, Self { path, _lock: lock }))
    }
}

impl TrackedPath {
    /// Runs `rename`. Until it returns, no signal handler deletes the unfinished file.
    fn named(&self, rename: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut made = made();
        rename()?;
        made.remove(&self.path);
        Ok(())
    }
}

impl Drop for TrackedPath {
    fn drop(&mut self) {
        made().remove(&self.path);
    }
}

/// Deletes all unfinished files before the program ends. Some systems cannot delete a file that is still being
/// written; such a file remains, but it is never renamed to its final name.
fn remove_all() {
    /// Number of attempts to recreate a folder that another process deletes.
    const ATTEMPTS: usize = 20;
    let made = made();
    for path in made.iter() {
        _ = (0..ATTEMPTS).find(|_| {
            remove(path);
            !path.exists()
        });
    }
    std::mem::forget(made);
}

fn remove(path: &Path) {
    _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// A file that gets its name when it is complete.
#[derive(Debug)]
pub struct UnfinishedFile {
    file: NamedTempFile,
    path: PathBuf,
    known: TrackedPath,
}

impl UnfinishedFile {
    /// Creates a temporary file in the folder of `path`, its later name.
    ///
    /// # Errors
    /// If no file can be created in the folder.
    pub fn of(path: &Path) -> io::Result<Self> {
        let folder = folder_of(path);
        sweep(folder);
        let (file, known) = TrackedPath::begun(|| file_in(folder), NamedTempFile::path)?;
        Ok(Self { file, path: path.to_owned(), known })
    }

    /// Returns the file to write to.
    pub fn as_file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Renames the file to its final name, and replaces an existing file.
    ///
    /// # Errors
    /// If it cannot be renamed; an existing file then stays unchanged.
    pub fn finish(self) -> io::Result<()> {
        let Self { file, path, known } = self;
        known.named(|| file.persist(&path).map(drop).map_err(|failed| failed.error))
    }

    /// Renames the file to its final name, which must not exist.
    ///
    /// # Errors
    /// If it cannot be renamed, or the name exists.
    pub fn finish_new(self) -> io::Result<()> {
        let Self { file, path, known } = self;
        known.named(|| file.persist_noclobber(&path).map(drop).map_err(|failed| failed.error))
    }
}

impl Write for UnfinishedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.as_file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.as_file().flush()
    }
}

/// A folder that gets its name when it is complete; deleted if it is dropped before.
#[derive(Debug)]
pub struct UnfinishedFolder {
    folder: TempDir,
    known: TrackedPath,
}

impl UnfinishedFolder {
    /// Creates a temporary folder in another folder.
    ///
    /// # Errors
    /// If no folder can be created there.
    pub fn within(folder: &Path) -> io::Result<Self> {
        sweep(folder);
        let (folder, known) = TrackedPath::begun(|| builder().tempdir_in(folder), TempDir::path)?;
        Ok(Self { folder, known })
    }

    /// Creates a temporary folder next to `path`, its later name.
    ///
    /// # Errors
    /// If no folder can be created there.
    pub fn of(path: &Path) -> io::Result<Self> {
        Self::within(folder_of(path))
    }

    /// Returns the temporary path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Renames the folder to its final name, which must not exist.
    ///
    /// # Errors
    /// If it cannot be renamed, or the name exists.
    pub fn finish_new(self, path: &Path) -> io::Result<()> {
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.known.named(|| fs::rename(self.folder.path(), path))?;
        _ = self.folder.keep(); // it has another name by now
        Ok(())
    }
}

/// Writes a file atomically, and replaces an existing file.
///
/// # Errors
/// If it cannot be written; an existing file then stays unchanged.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = UnfinishedFile::of(path)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Writes a file that must not exist yet.
///
/// # Errors
/// If it cannot be written, or the name exists.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = UnfinishedFile::of(path)?;
    file.write_all(bytes)?;
    file.finish_new()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM);
    builder
}

/// Creates a temporary file with the permissions that the umask allows; the default would be private.
fn file_in(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = builder();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Deletes the unfinished files that killed programs left in a folder. Errors are ignored.
fn sweep(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let alike = entries.filter(|entry| is_ours(&entry.file_name().to_string_lossy()));
    alike.map(|entry| entry.path()).filter(|path| is_left(path)).for_each(|path| remove(&path));
}

/// Returns true if this module generated the name. Similar names given by users are kept.
fn is_ours(name: &str) -> bool {
    let random = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    random.is_some_and(|random| random.len() == RANDOM && random.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// Returns true if no running process uses the path.
fn is_left(path: &Path) -> bool {
    let Ok(metadata) = fs::symlink_metadata(path) else { return false };
    // This module only creates files and folders. Opening a pipe would wait for its writer.
    let may_be_ours = metadata.is_file() || metadata.is_dir();
    let is_old = metadata.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > BEGINNING));
    may_be_ours && is_old && File::open(path).is_ok_and(|handle| handle.try_lock().is_ok())
}
