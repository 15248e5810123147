//! Hashes that name the hub's files and verify their content.

use std::fs::File;
use std::io;

use sha1::{Digest as _, Sha1};
use sha2::Sha256;

use crate::disk_cache::hash_of;

/// The hash of a file's content as the hub states it, in lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Digest {
    /// SHA-256 of the content, for large files.
    Sha256(String),
    /// SHA-1 of `blob`, the length, a zero byte, and the content, for small files that git itself stores.
    GitBlob(String),
}

impl Digest {
    /// Parses the name of a cached blob; `None` if it is not a hash.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let is_hash = name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        match name.len() {
            64 if is_hash => Some(Digest::Sha256(name.to_owned())),
            40 if is_hash => Some(Digest::GitBlob(name.to_owned())),
            _ => None,
        }
    }

    /// Returns the name of the blob in the cache.
    pub(crate) fn name(&self) -> &str {
        match self {
            Digest::Sha256(name) | Digest::GitBlob(name) => name,
        }
    }

    /// Returns the hash of the same kind for the file's bytes after its current position.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn of(&self, file: &mut File) -> io::Result<String> {
        match self {
            Digest::Sha256(_) => hash_of(Sha256::new(), file),
            Digest::GitBlob(_) => {
                let header = format!("blob {}\0", file.metadata()?.len());
                hash_of(Sha1::new().chain_update(header), file)
            }
        }
    }
}
