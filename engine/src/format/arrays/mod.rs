//! Named arrays of a file of any kind in [`FileKind`], or of a folder of such files.

mod file_kind;
mod folder;
mod npz;
mod polygraphy;
mod tensor_proto;

use std::path::Path;

pub use folder::array_files;

use super::{FileBytes, Format, NameIndex, Pytorch, Safetensors, TensorFile, npy};
use crate::error::{Error, Result};
use crate::weight::{DType, StoredTensor};
use file_kind::FileKind;

/// Arrays of a file or folder, known only by their names.
#[derive(Clone, Debug)]
pub struct Arrays {
    /// Named arrays.
    pub tensors: TensorFile,
    /// Names of entries that are not arrays.
    pub others: Vec<String>,
}

/// Arrays with their names, and the names of entries that are not arrays.
type NamedEntries = (Vec<(String, StoredTensor)>, Vec<String>);

impl Arrays {
    /// Reads a file of any supported kind, or a folder.
    ///
    /// # Errors
    /// If it has another kind, is damaged, or claims more data than its size allows.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            let (entries, others) = folder::read(path)?;
            return Self::of(path, entries, others);
        }
        let (mut entries, others) = entries(&FileBytes::open(path)?)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        for (name, _) in entries.iter_mut().filter(|(name, _)| name.is_empty()) {
            *name = stem.to_string();
        }
        Self::of(path, entries, others)
    }

    /// Creates arrays from named entries.
    ///
    /// # Errors
    /// If two entries have the same name.
    pub fn of(path: &Path, entries: Vec<(String, StoredTensor)>, others: Vec<String>) -> Result<Self> {
        let offsets = vec![0; entries.len()];
        let source = FileBytes::embedded(path, &[]);
        let tensors = NameIndex::new(&source, "array", entries, &offsets)?;
        Ok(Self { tensors: TensorFile { path: path.to_owned(), tensors }, others })
    }
}

/// Returns true if a file has a format in which activations are saved. Models are not rejected.
///
/// # Errors
/// If the format is unknown or not read; the message tells how to convert the file.
pub fn is_array_file(source: &FileBytes) -> Result<bool> {
    let is_model = |kind: &FileKind| matches!(kind, FileKind::Container(Format::Gguf | Format::Llama2c));
    FileKind::of(source).map(|kind| !is_model(&kind))
}

/// Reads numbers without a header: the logits of a transformers model that llama.cpp's scripts save.
fn raw(source: &FileBytes) -> Result<StoredTensor> {
    let elements = source.data.len() / 4;
    if !source.data.len().is_multiple_of(4) || elements == 0 {
        let problem = format!("{} bytes, expected f32 numbers of 4 bytes each", source.data.len());
        return Err(Error::dump(&source.path, problem));
    }
    Ok(StoredTensor { dtype: DType::F32, shape: vec![elements], data: source.data.clone() })
}

/// Reads the arrays of a file. An array without a name in the file gets an empty name.
fn entries(source: &FileBytes) -> Result<NamedEntries> {
    let format = match FileKind::of(source)? {
        FileKind::Container(format) => format,
        FileKind::Pickle => {
            return Pytorch::pickled(source).map(|nested| (nested.arrays, nested.others));
        }
        FileKind::TensorProto => return Ok((vec![tensor_proto::read(source)?], Vec::new())),
        FileKind::Polygraphy => return Ok((polygraphy::read(source)?, Vec::new())),
        FileKind::RawLogits => return Ok((vec![(String::new(), raw(source)?)], Vec::new())),
    };
    match format {
        Format::Safetensors => {
            let tensors = Safetensors::read(source)?.tensors;
            let entries = tensors.iter().map(|(name, stored)| (name.to_owned(), stored.clone()));
            Ok((entries.collect(), Vec::new()))
        }
        Format::Pytorch => Pytorch::nested(source).map(|nested| (nested.arrays, nested.others)),
        Format::Npz => Ok((npz::read(source)?, Vec::new())),
        Format::Npy => Ok((vec![(String::new(), npy::read(source, None)?)], Vec::new())),
        found @ (Format::Gguf | Format::Llama2c) => Err(Error::dump(
            &source.path,
            format!("it is a model ({}), expected a file of activations", found.name()),
        )),
    }
}
