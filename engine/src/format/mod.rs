//! Parsers from untrusted bytes to named, checked views. Each reader validates once; its results cannot fail later.
//!
//! No statement of a file is trusted. Counts are compared with the number of remaining bytes before memory is
//! allocated. Sums and products of lengths are checked for overflow. Errors name the file, the byte and, if
//! possible, the tensor.

mod arrays;
mod cursor;
mod detection;
mod escape;
mod file_store;
pub mod gguf;
pub(crate) mod llama2c;
mod messages;
mod name_index;
pub mod npy;
pub(crate) mod pytorch;
pub(crate) mod safetensors;
mod source;

use std::path::{Path, PathBuf};

pub use arrays::{Arrays, array_files, is_array_file};
pub(crate) use cursor::Cursor;
pub use detection::Format;
pub use escape::{EscapedText, commands, plain, write_out};
pub use file_store::{Disk, FileStore};
pub use gguf::Gguf;
pub use llama2c::Llama2cFile;
pub use messages::Messages;
pub(crate) use name_index::NameIndex;
pub use pytorch::Pytorch;
pub use safetensors::Safetensors;
pub use source::FileBytes;

use crate::error::Result;
use crate::weight::{DType, StoredTensor};

/// Named tensors of one file, in file order. Their bytes are views of the file, not copies.
#[derive(Clone, Debug)]
pub struct TensorFile {
    path: PathBuf,
    tensors: NameIndex<StoredTensor>,
}

impl TensorFile {
    /// Reads the tensors of a file in any supported format.
    ///
    /// # Errors
    /// If it has no named tensors, is damaged, or contradicts itself.
    pub fn read(source: &FileBytes) -> Result<Self> {
        match Format::detect(source)? {
            Format::Gguf => Gguf::read(source).map(|file| file.tensors),
            Format::Safetensors => Safetensors::read(source).map(|file| file.tensors),
            Format::Pytorch => Pytorch::read(source).map(|file| file.tensors),
            Format::Llama2c => Llama2cFile::read(source).map(|file| file.tensors),
            Format::Npy | Format::Npz => Err(detection::wrong_magic(
                source,
                "a file of tensors: GGUF, safetensors, PyTorch or llama2.c",
            )),
        }
    }

    /// Joins the tensors of several files. The result has the path of the file that lists them.
    ///
    /// # Errors
    /// If two tensors have the same name.
    pub fn joined(list: &FileBytes, entries: Vec<(String, StoredTensor)>) -> Result<Self> {
        let offsets = vec![0; entries.len()];
        Ok(Self { path: list.path.clone(), tensors: NameIndex::new(list, "tensor", entries, &offsets)? })
    }

    /// Replaces each tensor by the result of `change` and keeps the names.
    ///
    /// # Errors
    /// The first error of `change`.
    pub(crate) fn try_map(
        mut self,
        mut change: impl FnMut(&str, &StoredTensor) -> Result<StoredTensor>,
    ) -> Result<Self> {
        self.tensors.try_update(&mut change)?;
        Ok(self)
    }

    /// Creates a file with the same path and other tensors.
    ///
    /// # Errors
    /// If two tensors have the same name.
    pub(crate) fn with_tensors(&self, entries: Vec<(String, StoredTensor)>) -> Result<Self> {
        let list = FileBytes { path: self.path.clone(), data: bytes::Bytes::new().into() };
        Self::joined(&list, entries)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the tensor with that name.
    pub fn get(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    /// Returns all tensors with their names, in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &StoredTensor)> {
        self.tensors.iter()
    }

    /// Returns all tensors with their names, in the form that [`TensorFile::joined`] takes. Their bytes are not copied.
    pub(crate) fn entries(&self) -> Vec<(String, StoredTensor)> {
        self.iter().map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect()
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns true if there are no tensors, as in a file with only a tokenizer.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }
}

/// Returns the size of a tensor in bytes; `None` if its shape overflows or does not fill whole blocks.
fn stored_bytes(dtype: DType, shape: &[usize]) -> Option<usize> {
    let elements = shape.iter().try_fold(1, |product: usize, &len| product.checked_mul(len))?;
    let codes = match (dtype, shape) {
        (DType::TL2, &[rows, columns]) => tl2_bytes(rows, columns),
        (DType::TL2, _) => None,
        _ => dtype.bytes_for(elements),
    };
    codes?.checked_add(dtype.tail_bytes())
}

/// Returns the size of a TL2 matrix's codes in bitnet.cpp, by the formula of its ggml; it does not depend on the tiles.
fn tl2_bytes(rows: usize, columns: usize) -> Option<usize> {
    let (rows, columns) = (i64::try_from(rows).ok()?, i64::try_from(columns).ok()?);
    let triples = columns.checked_sub(256)?.checked_mul(rows)? / 3 * 5 / 8;
    let pairs = rows.checked_mul(256)? / 2 * 4 / 8;
    let bytes = usize::try_from(triples.checked_add(pairs)?).ok()?;
    bytes.checked_next_multiple_of(32)
}
