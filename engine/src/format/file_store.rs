//! Access to a group of files, in a local folder or remote.

use std::path::Path;

use super::FileBytes;
use crate::error::Result;

/// Opens files by their paths.
pub trait FileStore: Sync {
    /// Returns true if a path is a folder.
    fn is_folder(&self, path: &Path) -> bool;

    /// Opens the file at a path, if it exists.
    ///
    /// # Errors
    /// If the file exists and cannot be opened.
    fn find(&self, path: &Path) -> Result<Option<FileBytes>>;

    /// Returns the reason why a file is missing, if it is known.
    fn why_absent(&self, path: &Path) -> Option<String> {
        _ = path;
        None
    }

    /// Opens the file at a path.
    ///
    /// # Errors
    /// If the file does not exist or cannot be opened.
    fn require(&self, path: &Path) -> Result<FileBytes>;
}

/// Local folders.
pub struct Disk;

impl FileStore for Disk {
    fn is_folder(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn find(&self, path: &Path) -> Result<Option<FileBytes>> {
        path.is_file().then(|| FileBytes::open(path)).transpose()
    }

    fn require(&self, path: &Path) -> Result<FileBytes> {
        FileBytes::open(path)
    }
}
