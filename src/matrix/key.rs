//! Cache key of a cell: a hash of everything that it reads.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::disk_cache::{DiskCache, PinnedContent};
use crate::error::Result;

/// Hash of all inputs of a cell.
#[derive(Debug)]
pub(crate) struct CellInputs<'k> {
    kept: &'k DiskCache,
    hash: Sha256,
    unknown: Option<String>,
}

impl<'k> CellInputs<'k> {
    /// Starts an empty key.
    pub(crate) fn new(kept: &'k DiskCache) -> Self {
        Self { kept, hash: Sha256::new(), unknown: None }
    }

    /// Adds a named text to the key.
    pub(crate) fn say(&mut self, what: &str, text: &str) {
        self.hash.update(format!("{what} {} {text}\n", text.len()));
    }

    /// Adds the content of a file, or of all files below a folder with their names. Other paths make the key unknown.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn content(&mut self, path: &Path) -> Result<()> {
        match PinnedContent::at(path)? {
            Err(special) => self.unknown(format!("{} is neither a file nor a folder", special.display())),
            Ok(content) => {
                self.say("content of", &path.to_string_lossy());
                self.say("sha256", &content.sha256(self.kept)?);
            }
        }
        Ok(())
    }

    /// Marks the key as unknown: the cell is run each time.
    pub(crate) fn unknown(&mut self, why: String) {
        self.unknown.get_or_insert(why);
    }

    /// Returns the key.
    ///
    /// # Errors
    /// The reason why there is no key.
    pub(crate) fn key(self) -> Result<String, String> {
        match self.unknown {
            Some(why) => Err(why),
            None => Ok(hex::encode(self.hash.finalize())),
        }
    }
}
