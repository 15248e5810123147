//! PyTorch checkpoints, `pytorch_model.bin`: what `torch.save` writes of a state dict since version 1.6.
//!
//! The file is a zip archive without compression, under a top folder of any name:
//!
//! ```text
//! data.pkl     a pickle: the names, and for each a type, a shape, strides and a place in a storage
//! data/0 …     the storages, raw numbers; several tensors may share one
//! byteorder    "little" or "big"; absent before torch 2.1, which wrote little
//! ```
//!
//! A pickle is a program. Python's own reader runs whatever functions it names; the machine here knows the few that
//! make tensors, calls none, and refuses every other by its name.

mod archive;
mod calls;
mod layout;
mod machine;
mod nested_tensors;
mod opcode;
mod reader;
mod value;

use archive::Archive;
use bytes::Bytes;
use layout::Layouts;

use super::escape::EscapedText;
use super::{FileBytes, NameIndex, TensorFile};
use crate::error::Result;
use crate::weight::{DType, StoredTensor};

/// A PyTorch checkpoint, checked.
#[derive(Clone, Debug)]
pub struct Pytorch {
    /// The tensors, in the order of the state dict. Those that torch stores transposed are copies.
    pub tensors: TensorFile,
}

/// Content of any file saved with torch: tensors in dicts, lists and tuples.
pub(super) struct NestedTensors {
    /// Tensors by the path of keys and numbers to them, and lists of whole numbers.
    pub(super) arrays: Vec<(String, StoredTensor)>,
    /// Other entries.
    pub(super) others: Vec<String>,
}

impl Pytorch {
    /// Reads and checks everything but the values of the tensors.
    ///
    /// # Errors
    /// If anything is damaged or contradicts itself, if the pickle asks for anything but tensors in one dict, or
    /// if a tensor is of a type that has no place here.
    pub fn read(source: &FileBytes) -> Result<Self> {
        let mut archive = Archive::open(source)?;
        archive.refuse_big_endian()?;
        let pickle = archive.source_of("data.pkl")?;
        let mut layouts = Layouts::new(archive);
        let mut entries = Vec::new();
        let mut offsets = Vec::new();
        for (name, tensor) in machine::run(&pickle)? {
            offsets.push(tensor.at);
            entries.push((name.to_owned(), layouts.stored(&pickle, EscapedText(name), &tensor)?));
        }
        let tensors = NameIndex::new(&pickle, "tensor", entries, &offsets)?;
        Ok(Self { tensors: TensorFile { path: source.path.clone(), tensors } })
    }

    /// Reads tensors anywhere in a saved file.
    ///
    /// # Errors
    /// As [`Pytorch::read`], but for the form of what holds the tensors.
    pub(super) fn nested(source: &FileBytes) -> Result<NestedTensors> {
        let mut archive = Archive::open(source)?;
        archive.refuse_big_endian()?;
        let pickle = archive.source_of("data.pkl")?;
        let mut layouts = Layouts::new(archive);
        let found = nested_tensors::run(&pickle)?;
        let mut arrays = Vec::new();
        for (name, tensor) in found.tensors {
            let stored = layouts.stored(&pickle, EscapedText(&name), &tensor)?;
            arrays.push((name, stored));
        }
        arrays.extend(found.ids.into_iter().map(|(name, ids)| (name, of_ids(&ids))));
        Ok(NestedTensors { arrays, others: found.others })
    }
}

fn of_ids(ids: &[i64]) -> StoredTensor {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    StoredTensor { dtype: DType::I64, shape: vec![ids.len()], data: Bytes::from(bytes).into() }
}
