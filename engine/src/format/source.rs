//! The bytes of a file and the path to blame in messages.

use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use memmap2::Mmap;

use super::escape::EscapedText;
use crate::error::{Error, FormatError, Result};
use crate::input;
use crate::lazy_bytes::LazyBytes;

/// A file's bytes and its path. Clones and slices of the bytes share them.
#[derive(Clone, Debug)]
pub struct FileBytes {
    /// The file, as messages name it; a member of an archive may be `dump.npz/p0/embed.npy`.
    pub path: PathBuf,
    /// Bytes of the file.
    pub data: LazyBytes,
}

impl FileBytes {
    /// Maps a file into memory: only the pages that are used are read. The file must be left alone as long
    /// as its bytes are in use; cut short, it ends the process.
    ///
    /// # Errors
    /// If it is missing, empty, a directory or anything else that cannot be mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = input::regular(path)?;
        // An empty file cannot be mapped, and the system's words for that help nobody.
        if metadata.len() == 0 {
            return Err(FormatError::Empty { file: path.to_owned() }.into());
        }
        let file = File::open(path).map_err(Error::io("open", path))?;
        Self::mapped(path, &file)
    }

    /// Maps a file that is open and not empty.
    #[expect(unsafe_code)]
    pub(super) fn mapped(path: &Path, file: &File) -> Result<Self> {
        // SAFETY: the map is read-only and the `Bytes` that owns it outlives every view. memmap2 asks one
        // thing more, that nobody changes the file while it is mapped. No program can prove that of the
        // others; it is the bargain of every engine that maps its weights, and the contract above.
        let map = unsafe { Mmap::map(file) }.map_err(Error::io("map", path))?;
        Ok(Self { path: path.to_owned(), data: LazyBytes::mapped(map) })
    }

    /// Bytes that are part of the program, under the name that messages give them.
    pub fn embedded(path: impl Into<PathBuf>, data: &'static [u8]) -> Self {
        Self { path: path.into(), data: Bytes::from_static(data).into() }
    }

    /// `needed` bytes of `what` should start at `offset`, and do not fit.
    pub fn truncated(&self, what: impl Display, offset: usize, needed: u64) -> Error {
        let available = self.data.len().saturating_sub(offset) as u64;
        Error::Format(FormatError::Truncated {
            file: self.path.clone(),
            what: what.to_string(),
            offset: offset as u64,
            needed,
            available,
        })
    }

    /// `what`, at `offset`, says something that cannot be.
    pub fn bad(
        &self,
        offset: usize,
        what: impl Display,
        found: impl Display,
        expected: impl Display,
    ) -> Error {
        Error::Format(FormatError::BadBytes {
            file: self.path.clone(),
            offset: offset as u64,
            what: what.to_string(),
            found: found.to_string(),
            expected: expected.to_string(),
        })
    }

    /// Returns an error about a field of a tensor's description.
    pub(super) fn bad_tensor(
        &self,
        tensor: EscapedText,
        offset: usize,
        what: &'static str,
        found: impl Display,
        expected: impl Display,
    ) -> Error {
        Error::Format(FormatError::BadTensor {
            file: self.path.clone(),
            tensor: tensor.to_string(),
            offset: offset as u64,
            what,
            found: found.to_string(),
            expected: expected.to_string(),
        })
    }
}
