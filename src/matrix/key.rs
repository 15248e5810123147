//! What a cell is known by: the content of all that it reads.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::Result;
use crate::kept::{Content, Kept};

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
        match Content::at(path)? {
            Err(special) => self.unknown(format!("{} is neither a file nor a folder", special.display())),
            Ok(content) => {
                self.say("content of", &path.to_string_lossy());
                self.say("sha256", &content.sha256(self.kept)?);
            }
        }
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
