//! One maker at a time, and no half: what is made lies in a folder of another name until it is whole.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Error, Result};

/// Something that is being made. Whatever ends the process leaves nothing under the final name; the folder of one that was
/// killed is removed by the next that makes the same.
#[derive(Debug)]
pub struct Making {
    place: PathBuf,
    /// Of its own for every attempt: what a killed one has left running writes into a folder that is gone.
    folder: TempDir,
    _parents: Parents, // dropped after the folder, which lies in them
    _lock: File,
}

/// Folders that were made for it, the innermost first: they go again if nothing comes into them.
#[derive(Debug)]
struct Parents(Vec<PathBuf>);

impl Parents {
    fn of(place: &Path) -> Result<Self> {
        let parents = place.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        let missing = Self(parents.take_while(|parent| !parent.exists()).map(Path::to_owned).collect());
        let Some(innermost) = missing.0.first() else { return Ok(missing) };
        fs::create_dir_all(innermost).map_err(Error::io("create", innermost))?;
        Ok(missing)
    }
}

impl Drop for Parents {
    fn drop(&mut self) {
        self.0.iter().for_each(|folder| _ = fs::remove_dir(folder)); // refused where it holds anything
    }
}

impl Making {
    /// Begins to make what is to be at `place`. Where another process makes the same, says so by `waiting` and waits.
    ///
    /// # Errors
    /// If the folders cannot be made.
    pub fn begin(place: &Path, lock: &Path, waiting: impl FnOnce()) -> Result<Self> {
        let lock = locked(lock, waiting)?;
        let parents = Parents::of(place)?;
        let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let prefix = prefix(place);
        sweep(parent, &prefix);
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
        let folder = folder.map_err(Error::io("write into", parent))?;
        Ok(Self { place: place.to_owned(), folder, _parents: parents, _lock: lock })
    }

    /// Where it is to be.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// A place for it, or for a part of the work, until it is whole.
    pub fn part(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Gives the part its place.
    ///
    /// # Errors
    /// If it cannot be moved.
    pub fn finish(self, part: &str) -> Result<PathBuf> {
        let part = self.part(part);
        if self.place.is_dir() {
            fs::remove_dir_all(&self.place).map_err(Error::io("replace", &self.place))?;
        }
        fs::rename(&part, &self.place).map_err(Error::io("write", &self.place))?;
        Ok(self.place.clone())
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

/// How the names of the folders begin that `place` is made in.
fn prefix(place: &Path) -> String {
    format!(".{}.making-", place.file_name().unwrap_or_default().to_string_lossy())
}

/// Removes what others have left behind, who hold no lock any more. What cannot be removed is in nobody's way.
fn sweep(parent: &Path, prefix: &str) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        _ = fs::remove_dir_all(entry.path());
    }
}
