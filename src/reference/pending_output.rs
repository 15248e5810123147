//! Files that only one process at a time makes. They are in a temporary folder until they are complete.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::{NamedTempFile, TempDir};

use crate::error::{Error, Result};

/// An output that is being made. If the process ends, nothing remains under the final name. The temporary
/// folder of a killed process is removed by the next process that makes the same output.
#[derive(Debug)]
pub struct PendingOutput {
    place: PathBuf,
    _held: Option<File>,
    /// Temporary folder of this attempt. If a killed attempt is still running, it writes into a deleted folder.
    folder: TempDir,
    _parents: CreatedFolders, // dropped after the folder inside them
    _lock: File,
}

/// Name of the file that is locked while a process works in the folder.
const HELD: &str = ".held";
/// Maximum age at which a folder without a lock file counts as just created.
const BEGINNING: Duration = Duration::from_secs(60);

/// Folders created for an output, innermost first. Empty ones are removed again.
#[derive(Debug)]
struct CreatedFolders(Vec<PathBuf>);

impl CreatedFolders {
    fn of(place: &Path) -> Result<Self> {
        let parents = place.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        let missing = Self(parents.take_while(|parent| !parent.exists()).map(Path::to_owned).collect());
        let Some(innermost) = missing.0.first() else { return Ok(missing) };
        fs::create_dir_all(innermost).map_err(Error::io("create", innermost))?;
        Ok(missing)
    }
}

impl Drop for CreatedFolders {
    fn drop(&mut self) {
        self.0.iter().for_each(|folder| _ = fs::remove_dir(folder)); // fails unless the folder is empty
    }
}

impl PendingOutput {
    /// Starts to make the output for `place`. If another process makes the same output, calls `waiting` and
    /// waits.
    ///
    /// # Errors
    /// If the folders cannot be made.
    pub fn begin(place: &Path, lock: &Path, waiting: impl FnOnce()) -> Result<Self> {
        let lock = locked(lock, waiting)?;
        let parents = CreatedFolders::of(place)?;
        let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let prefix = prefix(place);
        sweep(parent, &prefix);
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
        let folder = folder.map_err(Error::io("write into", parent))?;
        let held = hold(folder.path()).ok(); // without locks, `sweep` removes nothing
        Ok(Self { place: place.to_owned(), _held: held, folder, _parents: parents, _lock: lock })
    }

    /// Returns a temporary path for the output, or for a part of it.
    pub fn part(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Moves a part to its final path, which must not exist.
    ///
    /// # Errors
    /// If the path exists by now, or the part cannot be moved.
    pub fn finish(self, part: &str) -> Result<PathBuf> {
        let write = Error::io("write", &self.place);
        if self.place.symlink_metadata().is_ok() {
            let problem = "something else was written there in the meantime, and was not replaced";
            return Err(write(io::Error::new(ErrorKind::AlreadyExists, problem)));
        }
        fs::rename(self.part(part), &self.place).map_err(write)?;
        Ok(self.place.clone())
    }

    /// Moves a part to its final path, and removes an older folder there.
    ///
    /// # Errors
    /// If the old folder cannot be removed, or the new one cannot be moved.
    pub(crate) fn replace(self, part: &str) -> Result<PathBuf> {
        if self.place.is_dir() {
            fs::remove_dir_all(&self.place).map_err(Error::io("replace", &self.place))?;
        }
        self.finish(part)
    }
}

fn locked(path: &Path, waiting: impl FnOnce()) -> Result<File> {
    let parent = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let file = file.map_err(Error::io("create", path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            waiting();
            file.lock().map_err(Error::io("lock", path))?;
        }
        Err(TryLockError::Error(source)) => return Err(Error::io("lock", path)(source)),
    }
    Ok(file)
}

/// Returns the prefix of the temporary folders for `place`.
fn prefix(place: &Path) -> String {
    format!(".{}.making-", place.file_name().unwrap_or_default().to_string_lossy())
}

/// Removes temporary folders of killed processes. Errors are ignored.
fn sweep(parent: &Path, prefix: &str) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let alike = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    for folder in alike.map(|entry| entry.path()).filter(|folder| is_left(folder)) {
        _ = fs::remove_dir_all(folder);
    }
}

/// Returns true if no process works in the folder. The lock file inside the folder decides, because a process with
/// another cache folder has another lock.
fn is_left(folder: &Path) -> bool {
    match File::open(folder.join(HELD)) {
        Ok(held) => held.try_lock().is_ok(),
        Err(_) => {
            let begun = fs::metadata(folder).and_then(|metadata| metadata.modified());
            begun.is_ok_and(|begun| begun.elapsed().is_ok_and(|age| age > BEGINNING))
        }
    }
}

/// Creates and locks the lock file of a folder. It is locked before it gets its name, so that no other
/// process finds it unlocked.
fn hold(folder: &Path) -> io::Result<File> {
    let file = NamedTempFile::new_in(folder)?;
    file.as_file().lock()?;
    Ok(file.persist(folder.join(HELD))?)
}
