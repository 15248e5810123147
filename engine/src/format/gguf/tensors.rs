//! Tensor descriptions of a GGUF file, and the byte ranges of the tensors' data.

use std::ops::Range;

use super::types::{FileDialect, TensorType, tensor_type};
use crate::error::{Error, FormatError, Result};
use crate::format::cursor::Cursor;
use crate::format::escape::EscapedText;
use crate::format::{FileBytes, NameIndex, TensorFile, stored_bytes};
use crate::weight::{DType, StoredTensor};

/// Minimum size of a description in bytes: name length, dimension count, one dimension, type and offset.
pub(super) const LEAST_BYTES: usize = 8 + 4 + 8 + 4 + 8;

/// Metadata that determines how tensors are read.
#[derive(Clone, Copy)]
pub(super) struct TensorContext {
    pub(crate) alignment: u32,
    pub(crate) origin: FileDialect,
}

/// A tensor description. Everything that does not depend on other tensors was checked.
struct Description<'a> {
    name: &'a str,
    /// Offset of the description.
    at: usize,
    dtype: DType,
    /// Shape, outermost axis first.
    shape: Vec<usize>,
    bytes: usize,
    /// Offset of the data from the start of the data section.
    offset: u64,
}

pub(super) fn read(cursor: &mut Cursor, count: usize, context: TensorContext) -> Result<TensorFile> {
    let source = cursor.source;
    let mut descriptions = Vec::with_capacity(count);
    for index in 0..count {
        descriptions.push(Description::read(cursor, index, context)?);
    }
    let data_start = cursor.at.checked_next_multiple_of(context.alignment as usize).unwrap_or(usize::MAX);
    let ranges = descriptions.iter().map(|description| description.range(source, data_start));
    let ranges = ranges.collect::<Result<Vec<_>>>()?;
    let tensors = collect(source, descriptions, &ranges)?;
    refuse_overlaps(source, &tensors, &ranges)?;
    Ok(TensorFile { path: source.path.clone(), tensors })
}

impl<'a> Description<'a> {
    fn read(cursor: &mut Cursor<'a>, index: usize, context: TensorContext) -> Result<Self> {
        let at = cursor.at;
        let name = cursor.text(format_args!("the name of tensor {index}"))?;
        let tensor = EscapedText(name);
        let shape_at = cursor.at;
        let shape = read_shape(cursor, tensor)?;
        let dtype = read_type(cursor, tensor, context)?;
        let bytes = bytes_of(cursor.source, tensor, shape_at, dtype, &shape)?;
        let offset = read_offset(cursor, tensor, context)?;
        Ok(Self { name, at, dtype, shape, bytes, offset })
    }

    /// Returns the file's byte range with the tensor's data.
    fn range(&self, source: &FileBytes, data_start: usize) -> Result<Range<usize>> {
        let offset = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let start = data_start.saturating_add(offset);
        match start.checked_add(self.bytes) {
            Some(end) if end <= source.data.len() => Ok(start..end),
            _ => {
                let tensor = format_args!("tensor '{}'", EscapedText(self.name));
                Err(source.truncated(tensor, start, self.bytes as u64))
            }
        }
    }
}

/// Reads the shape and reverses it: the file lists dimensions innermost first, shapes are outermost first.
fn read_shape(cursor: &mut Cursor, tensor: EscapedText) -> Result<Vec<usize>> {
    let at = cursor.at;
    let count = cursor.u32(format_args!("the dimension count of tensor '{tensor}'"))?;
    if !(1..=4).contains(&count) {
        return Err(cursor.source.bad_tensor(tensor, at, "dimension count", count, "1 to 4"));
    }
    let mut shape = vec![0; count as usize];
    for axis in shape.iter_mut().rev() {
        let at = cursor.at;
        let len = cursor.u64(format_args!("a dimension of tensor '{tensor}'"))?;
        *axis = usize::try_from(len).ok().filter(|&len| len > 0).ok_or_else(|| {
            cursor.source.bad_tensor(tensor, at, "dimension", len, format_args!("1 to {}", usize::MAX))
        })?;
    }
    Ok(shape)
}

fn read_type(cursor: &mut Cursor, tensor: EscapedText, context: TensorContext) -> Result<DType> {
    let offset = cursor.at as u64;
    let id = cursor.u32(format_args!("the type of tensor '{tensor}'"))?;
    let (file, tensor) = (|| cursor.source.path.clone(), || tensor.to_string());
    match tensor_type(id, context.origin) {
        TensorType::Known(dtype) => Ok(dtype),
        TensorType::Refused(name, hint) => {
            let name = name.to_owned();
            Err(FormatError::RefusedTensorType { file: file(), tensor: tensor(), offset, name, hint }.into())
        }
        TensorType::Unknown => {
            Err(FormatError::UnknownTensorType { file: file(), tensor: tensor(), offset, id }.into())
        }
    }
}

/// Returns the size of the data in bytes, if rows are whole blocks and the size does not overflow.
fn bytes_of(
    source: &FileBytes,
    tensor: EscapedText,
    at: usize,
    dtype: DType,
    shape: &[usize],
) -> Result<usize> {
    let row = shape[shape.len() - 1];
    let block = dtype.block_len();
    if !row.is_multiple_of(block) {
        let expected = format_args!("a multiple of {block}, the block length of {dtype}");
        return Err(source.bad_tensor(tensor, at, "row length", row, expected));
    }
    stored_bytes(dtype, shape).ok_or_else(|| {
        let found = format_args!("{shape:?} of {dtype}");
        source.bad_tensor(tensor, at, "shape", found, "a size that fits in memory")
    })
}

fn read_offset(cursor: &mut Cursor, tensor: EscapedText, context: TensorContext) -> Result<u64> {
    let at = cursor.at;
    let offset = cursor.u64(format_args!("the data offset of tensor '{tensor}'"))?;
    let alignment = context.alignment;
    if !offset.is_multiple_of(alignment.into()) {
        let expected = format_args!("a multiple of the alignment, {alignment}");
        return Err(cursor.source.bad_tensor(tensor, at, "data offset", offset, expected));
    }
    Ok(offset)
}

fn collect(
    source: &FileBytes,
    descriptions: Vec<Description>,
    ranges: &[Range<usize>],
) -> Result<NameIndex<StoredTensor>> {
    let offsets: Vec<usize> = descriptions.iter().map(|description| description.at).collect();
    let tensors = descriptions.into_iter().zip(ranges).map(|(description, range)| {
        let Description { name, dtype, shape, .. } = description;
        (name.to_owned(), StoredTensor { dtype, shape, data: source.data.slice(range.clone()) })
    });
    NameIndex::new(source, "tensor", tensors.collect(), &offsets)
}

fn refuse_overlaps(
    source: &FileBytes,
    tensors: &NameIndex<StoredTensor>,
    ranges: &[Range<usize>],
) -> Result<()> {
    let mut by_start: Vec<_> = tensors.iter().map(|(name, _)| name).zip(ranges).collect();
    by_start.sort_by_key(|(_, range)| range.start);
    for (first, second) in by_start.iter().zip(by_start.iter().skip(1)) {
        if second.1.start < first.1.end {
            return Err(Error::Format(FormatError::OverlappingTensors {
                file: source.path.clone(),
                tensor: EscapedText(second.0).to_string(),
                other: EscapedText(first.0).to_string(),
                offset: second.1.start as u64,
            }));
        }
    }
    Ok(())
}
