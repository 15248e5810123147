//! PyTorch checkpoints: state dicts saved by `torch.save` since version 1.6 (`pytorch_model.bin`), and hqq's
//! `qmodel.pt`.
//!
//! The file is an uncompressed zip archive with one top folder of any name:
//!
//! ```text
//! data.pkl     a pickle: for each name a type, a shape, strides and an offset in a storage
//! data/0 …     storages of raw numbers; several tensors may share a storage
//! byteorder    "little" or "big"; missing (little-endian) before torch 2.1
//! ```
//!
//! A pickle is a program: Python's own reader runs any function that it names. This machine knows the few functions
//! that create tensors, and imitates them without calling them. It rejects all other functions by name.

mod archive;
mod calls;
mod layout;
mod machine;
mod nested_tensors;
mod numpy;
mod opcode;
mod reader;
mod value;

use archive::Archive;
use layout::Layouts;
use machine::PicklePurpose;
use value::PickleTensor;

use super::escape::EscapedText;
use super::{FileBytes, NameIndex, TensorFile};
use crate::error::Result;
use crate::weight::{DType, StoredTensor};

/// Weight file of hqq's `save_quantized`: a dict of modules in place of a dict of tensors.
pub(crate) const MODULES_FILE: &str = "qmodel.pt";

/// Returns true for a weight file of hqq's `save_quantized`.
pub(crate) fn is_modules_file(file: &FileBytes) -> bool {
    file.path.file_name().is_some_and(|name| name == MODULES_FILE)
}

/// A checked PyTorch checkpoint.
#[derive(Clone, Debug)]
pub struct Pytorch {
    /// Tensors in the order of the state dict. Transposed tensors are copies.
    pub tensors: TensorFile,
}

/// Content of any file saved with torch: tensors in dicts, lists and tuples.
pub(super) struct NestedTensors {
    /// Tensors and lists of integers, by their path of keys and indices.
    pub(super) arrays: Vec<(String, StoredTensor)>,
    /// Other entries.
    pub(super) others: Vec<String>,
}

impl Pytorch {
    /// Reads and checks everything except the values of the tensors.
    ///
    /// # Errors
    /// If the file is damaged or contradicts itself, the pickle needs more than tensors in one dict, or a tensor has an
    /// unsupported type.
    pub fn read(source: &FileBytes) -> Result<Self> {
        if is_modules_file(source) {
            return Self::read_modules(source);
        }
        let (pickle, mut layouts) = opened(source)?;
        let mut entries = Vec::new();
        let mut offsets = Vec::new();
        for (name, tensor) in machine::run(&pickle)? {
            offsets.push(tensor.at);
            entries.push((name.to_owned(), layouts.stored(&pickle, EscapedText(name), &tensor)?));
        }
        let tensors = NameIndex::new(&pickle, "tensor", entries, &offsets)?;
        Ok(Self { tensors: TensorFile { path: source.path.clone(), tensors } })
    }

    /// Reads hqq's file: a dict of modules. Settings of modules become tensors, as in hqq's safetensors files.
    fn read_modules(source: &FileBytes) -> Result<Self> {
        let (pickle, mut layouts) = opened(source)?;
        let found = nested_tensors::run(&pickle, PicklePurpose::Modules)?;
        let mut entries = stored(&pickle, &mut layouts, found.tensors)?;
        entries.extend(found.facts);
        let offsets = vec![0; entries.len()];
        let tensors = NameIndex::new(&pickle, "tensor", entries, &offsets)?;
        Ok(Self { tensors: TensorFile { path: source.path.clone(), tensors } })
    }

    /// Reads tensors anywhere in a saved file.
    ///
    /// # Errors
    /// See [`Pytorch::read`]; tensors may be in any container.
    pub(super) fn nested(source: &FileBytes) -> Result<NestedTensors> {
        let (pickle, mut layouts) = opened(source)?;
        let found = nested_tensors::run(&pickle, PicklePurpose::Activations)?;
        let mut arrays = stored(&pickle, &mut layouts, found.tensors)?;
        arrays.extend(found.numpy);
        arrays.extend(found.ids.into_iter().map(|(name, ids)| (name, integers(vec![ids.len()], &ids))));
        Ok(NestedTensors { arrays, others: found.others })
    }

    /// Reads NumPy arrays anywhere in a pickle outside of an archive.
    ///
    /// # Errors
    /// See [`Pytorch::read`]; the pickle has no tensors of torch, whose values are in an archive.
    pub(super) fn pickled(source: &FileBytes) -> Result<NestedTensors> {
        let found = nested_tensors::run(source, PicklePurpose::Activations)?;
        let mut arrays = found.numpy;
        arrays.extend(found.ids.into_iter().map(|(name, ids)| (name, integers(vec![ids.len()], &ids))));
        let tensors = found.tensors.into_iter().map(|(name, _)| name);
        Ok(NestedTensors { arrays, others: found.others.into_iter().chain(tensors).collect() })
    }
}

/// Opens the archive. Returns its pickle, and the reader of its tensors.
fn opened(source: &FileBytes) -> Result<(FileBytes, Layouts<'_>)> {
    let mut archive = Archive::open(source)?;
    archive.refuse_big_endian()?;
    Ok((archive.source_of("data.pkl")?, Layouts::new(archive)))
}

/// Reads tensors, with their names.
fn stored(
    pickle: &FileBytes,
    layouts: &mut Layouts,
    tensors: Vec<(String, PickleTensor)>,
) -> Result<Vec<(String, StoredTensor)>> {
    let read = |(name, tensor): (String, PickleTensor)| {
        let stored = layouts.stored(pickle, EscapedText(&name), &tensor)?;
        Ok((name, stored))
    };
    tensors.into_iter().map(read).collect()
}

/// Returns a tensor of integers.
fn integers(shape: Vec<usize>, numbers: &[i64]) -> StoredTensor {
    let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    StoredTensor { dtype: DType::I64, shape, data: data.into() }
}
