//! Content of a file or folder, identified by one SHA-256.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{DiskCache, PinnedFile};
use crate::error::{Error, Result};

/// Maximum folder depth. Deeper folders are assumed to be a cycle of links.
const DEEPEST: usize = 32;

/// A file, or all named files below a folder, pinned to their state when they were opened.
#[derive(Clone, Debug)]
pub(crate) struct PinnedContent {
    files: Vec<(String, PinnedFile)>,
}

impl PinnedContent {
    /// Pins the current content of `path`. If an entry is neither a file nor a folder, returns the entry's path.
    ///
    /// # Errors
    /// If a file cannot be opened, or a folder cannot be listed.
    pub(crate) fn at(path: &Path) -> Result<Result<Self, PathBuf>> {
        let mut files = Vec::new();
        if let Some(special) = list(path, Path::new(""), DEEPEST, &mut files)? {
            return Ok(Err(special));
        }
        let pinned = files.into_iter().map(|(name, path)| Ok((name, PinnedFile::at(&path)?)));
        Ok(Ok(Self { files: pinned.collect::<Result<_>>()? }))
    }

    /// Returns the hash of all names, sizes and bytes, in hexadecimal.
    ///
    /// # Errors
    /// If a file cannot be read, or has changed since it was pinned.
    pub(crate) fn sha256(&self, kept: &DiskCache) -> Result<String> {
        let mut hash = Sha256::new();
        for (name, file) in &self.files {
            hash.update(format!("file {} {name} {}\n", name.len(), file.len()));
        }
        let files: Vec<PinnedFile> = self.files.iter().map(|(_, file)| file.clone()).collect();
        hash.update(kept.sha256(&files)?);
        Ok(hex::encode(hash.finalize()))
    }

    /// Checks that all files are unchanged since they were pinned.
    ///
    /// # Errors
    /// If a file has changed or no longer exists.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(|(_, file)| file.check_unchanged())
    }
}

/// Lists the files below `path` by name, in order. Returns the path of an entry that is neither a file nor a
/// folder.
fn list(
    path: &Path,
    name: &Path,
    deep: usize,
    files: &mut Vec<(String, PathBuf)>,
) -> Result<Option<PathBuf>> {
    let metadata = fs::metadata(path).map_err(Error::io("open", path))?;
    if metadata.is_file() {
        files.push((name.to_string_lossy().into_owned(), path.to_owned()));
        return Ok(None);
    }
    if !metadata.is_dir() || deep == 0 {
        return Ok(Some(path.to_owned()));
    }
    let entries = fs::read_dir(path).map_err(Error::io("list", path))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(Error::io("list", path))?.file_name());
    }
    names.sort();
    for entry in names {
        if let Some(special) = list(&path.join(&entry), &name.join(&entry), deep - 1, files)? {
            return Ok(Some(special));
        }
    }
    Ok(None)
}
