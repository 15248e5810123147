//! Bytes of a file, with the path for messages.

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
    /// Path of the file in messages; a member of an archive may be `dump.npz/p0/embed.npy`.
    pub path: PathBuf,
    /// Bytes of the file.
    pub data: LazyBytes,
}

impl FileBytes {
    /// Maps a file into memory, so that only used pages are read. The file must not be changed while its bytes are in
    /// use; if it is truncated, the process ends.
    ///
    /// # Errors
    /// If it is missing, empty, a directory, or otherwise not mappable.
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = input::regular(path)?;
        // An empty file cannot be mapped, and the system's message does not say so.
        if metadata.len() == 0 {
            return Err(FormatError::Empty { file: path.to_owned() }.into());
        }
        let file = File::open(path).map_err(Error::io("open", path))?;
        Self::mapped(path, &file)
    }

    /// Maps an open, non-empty file.
    #[expect(unsafe_code)]
    pub(super) fn mapped(path: &Path, file: &File) -> Result<Self> {
        // SAFETY: the map is read-only, and the `Bytes` that owns it outlives every view. memmap2 also requires that no
        // process changes the file while it is mapped. No program can enforce this on others; every engine that maps
        // weights relies on it, and the documentation of `open` states it.
        let map = unsafe { Mmap::map(file) }.map_err(Error::io("map", path))?;
        Ok(Self { path: path.to_owned(), data: LazyBytes::mapped(map) })
    }

    /// Wraps bytes that are compiled into the program, with a path for messages.
    pub fn embedded(path: impl Into<PathBuf>, data: &'static [u8]) -> Self {
        Self { path: path.into(), data: Bytes::from_static(data).into() }
    }

    /// Creates an error: the `needed` bytes of `what` at `offset` exceed the file.
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

    /// Creates an error: `what`, at `offset`, has an invalid value.
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
