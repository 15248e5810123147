//! Files and folders with a temporary name until they are complete.
//!
//! They are deleted when they are dropped and when a signal ends the program. Files that a killed program left are deleted by
//! the next program that writes into the same folder: a file in use is locked, and no lock outlives its process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use tempfile::{NamedTempFile, TempDir};

use crate::shutdown;

/// Start and end of their names, with so many letters and digits between.
const PREFIX: &str = ".xcheck-";
const SUFFIX: &str = ".unfinished";
const RANDOM: usize = 6;
/// Age up to which an unlocked file may still be in use by the process that created it.
const BEGINNING: Duration = Duration::from_secs(2);

/// Unfinished files of this program, for the thread that waits for signals. It waits while one is renamed.
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
    /// Creates a file or folder and registers its path, with signals held back until then.
    fn begun<T>(make: impl FnOnce() -> io::Result<T>, path: impl Fn(&T) -> &Path) -> io::Result<(T, Self)> {
        static WATCH: Once = Once::new();
        // Where signals cannot be waited for, the next program removes what this one leaves.
        WATCH.call_once(|| _ = shutdown::before(remove_all));
        let mut made = made();
        let begun = make()?;
        let path = path(&begun);
        // A folder is locked itself. Some systems cannot; nothing is swept there either.
        let lock = File::open(path).ok().filter(|handle| handle.lock().is_ok());
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        made.insert(path.clone());
        Ok((begun, Self { path, _lock: lock }))
    }
}

impl TrackedPath {
    /// Has it renamed, while no signal removes it.
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

/// Deletes all unfinished files before the program ends. No file is renamed after that, since a file that is still
/// written may not be removable.
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

/// A file that gets its name when it is whole.
#[derive(Debug)]
pub struct UnfinishedFile {
    file: NamedTempFile,
    path: PathBuf,
    known: TrackedPath,
}

impl UnfinishedFile {
    /// Begins what will be the file at `path`, in its folder.
    ///
    /// # Errors
    /// If no file can be created there.
    pub fn of(path: &Path) -> io::Result<Self> {
        let folder = folder_of(path);
        sweep(folder);
        let (file, known) = TrackedPath::begun(|| file_in(folder), NamedTempFile::path)?;
        Ok(Self { file, path: path.to_owned(), known })
    }

    /// The file to write to.
    pub fn as_file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Gives it its name; what had that name before is gone.
    ///
    /// # Errors
    /// If it cannot be renamed; then what was there still is.
    pub fn finish(self) -> io::Result<()> {
        let Self { file, path, known } = self;
        known.named(|| file.persist(&path).map(drop).map_err(|failed| failed.error))
    }

    /// Gives it its name, which nothing may have.
    ///
    /// # Errors
    /// If it cannot be renamed, or something has that name.
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

/// A folder that gets its name when it is whole, or goes.
#[derive(Debug)]
pub struct UnfinishedFolder {
    folder: TempDir,
    known: TrackedPath,
}

impl UnfinishedFolder {
    /// Begins a folder in another.
    ///
    /// # Errors
    /// If no file can be created there.
    pub fn within(folder: &Path) -> io::Result<Self> {
        sweep(folder);
        let (folder, known) = TrackedPath::begun(|| builder().tempdir_in(folder), TempDir::path)?;
        Ok(Self { folder, known })
    }

    /// Begins what will be the folder at `path`, beside that.
    ///
    /// # Errors
    /// If no file can be created there.
    pub fn of(path: &Path) -> io::Result<Self> {
        Self::within(folder_of(path))
    }

    /// Returns the temporary path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives it its name, which nothing may have.
    ///
    /// # Errors
    /// If it cannot be renamed, or something has that name.
    pub fn finish_new(self, path: &Path) -> io::Result<()> {
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.known.named(|| fs::rename(self.folder.path(), path))?;
        _ = self.folder.keep(); // it has another name by now
        Ok(())
    }
}

/// Writes a file that is whole whenever it is there.
///
/// # Errors
/// If it cannot be written; then what was there still is.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = UnfinishedFile::of(path)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Writes a file that must not exist yet.
///
/// # Errors
/// If it cannot be written, or something has that name.
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

/// Temporary files are private unless told otherwise; what is written is for whoever the umask says.
fn file_in(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = builder();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Removes what others have left in a folder. What cannot be removed is in nobody's way.
fn sweep(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let alike = entries.filter(|entry| is_ours(&entry.file_name().to_string_lossy()));
    alike.map(|entry| entry.path()).filter(|path| is_left(path)).for_each(|path| remove(&path));
}

/// Returns true if a name was generated here; similar names of users are not touched.
fn is_ours(name: &str) -> bool {
    let random = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    random.is_some_and(|random| random.len() == RANDOM && random.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// Returns true if no process works on it.
fn is_left(path: &Path) -> bool {
    let Ok(metadata) = fs::symlink_metadata(path) else { return false };
    // Anything else was not made here, and to open a pipe is to wait for who writes into it.
    let may_be_ours = metadata.is_file() || metadata.is_dir();
    let is_old = metadata.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > BEGINNING));
    may_be_ours && is_old && File::open(path).is_ok_and(|handle| handle.try_lock().is_ok())
}
