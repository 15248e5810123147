//! What a cell is known by: the content of all that it reads.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::kept::{Kept, Pinned};

/// Folders in folders: deeper ones are a circle of links.
const DEEPEST: usize = 32;

/// Everything that decides what a command comes to, told one after the other.
#[derive(Debug)]
pub struct Inputs<'k> {
    kept: &'k Kept,
    hash: Sha256,
    unknown: Option<String>,
}

impl<'k> Inputs<'k> {
    /// Nothing yet.
    pub fn new(kept: &'k Kept) -> Self {
        Self { kept, hash: Sha256::new(), unknown: None }
    }

    /// A text.
    pub fn say(&mut self, what: &str, text: &str) {
        self.hash.update(format!("{what} {} {text}\n", text.len()));
    }

    /// What a file holds, or all files below a folder, with their names. What is elsewhere, or neither, cannot be known.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn content(&mut self, path: &Path) -> Result<()> {
        let mut files = Vec::new();
        match list(path, Path::new(""), DEEPEST, &mut files)? {
            Some(special) => {
                self.unknown(format!("{} is neither a file nor a folder", special.display()));
                return Ok(());
            }
            None => self.say("content of", &path.to_string_lossy()),
        }
        for (name, file) in &files {
            let bytes = fs::metadata(file).map_err(Error::io("open", file))?.len();
            self.say("file", &format!("{name} {bytes}"));
        }
        let pinned = files.iter().map(|(_, file)| Pinned::at(file)).collect::<Result<Vec<_>>>()?;
        let hash = self.kept.sha256(&pinned)?;
        self.say("sha256", &hash);
        Ok(())
    }

    /// What it comes to cannot be known beforehand: it is run each time.
    pub fn unknown(&mut self, why: String) {
        self.unknown.get_or_insert(why);
    }

    /// The key.
    ///
    /// # Errors
    /// Why there is none.
    pub fn key(self) -> Result<String, String> {
        match self.unknown {
            Some(why) => Err(why),
            None => Ok(hex::encode(self.hash.finalize())),
        }
    }
}

/// Files by their names below `path`, in order; gives back what is neither a file nor a folder.
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
