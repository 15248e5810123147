//! safetensors, Hugging Face's tensor file format: the length of a JSON header, the header, the data.
//!
//! Header entries are parsed by the `safetensors` crate. The checks are made here, so that errors name the tensor
//! and the byte.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use safetensors::tensor::{Dtype, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::cursor::Cursor;
use super::detection::wrong_magic;
use super::escape::EscapedText;
use super::{FileBytes, NameIndex, TensorFile, stored_bytes};
use crate::error::{Error, FormatError, Result};
use crate::weight::{DType, StoredTensor};

/// A checked safetensors file.
#[derive(Clone, Debug)]
pub struct Safetensors {
    /// Strings under `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// Tensors in the order of their data.
    pub tensors: TensorFile,
}

impl Safetensors {
    /// Reads and checks everything except the values of the tensors.
    ///
    /// # Errors
    /// If the file is damaged or contradicts itself, or a tensor has an unsupported type.
    pub fn read(source: &FileBytes) -> Result<Self> {
        let mut cursor = Cursor::new(source);
        let SafetensorsHeader { metadata, mut tensors } = read_header(&mut cursor)?;
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        let data_start = cursor.at;
        let mut end = data_start;
        let mut offsets = Vec::with_capacity(tensors.len());
        let mut entries = Vec::with_capacity(tensors.len());
        for (name, info) in tensors {
            let (dtype, range) = place(source, data_start, end, EscapedText(&name), &info)?;
            end = range.end;
            offsets.push(range.start);
            entries.push((name, StoredTensor { dtype, shape: info.shape, data: source.data.slice(range) }));
        }
        refuse_rest(source, end)?;
        let tensors = NameIndex::new(source, "tensor", entries, &offsets)?;
        Ok(Self { metadata, tensors: TensorFile { path: source.path.clone(), tensors } })
    }
}

/// Returns the number of data bytes that a header requires, or an error message.
pub(super) fn announced(header: &[u8]) -> Result<u64, String> {
    let header: SafetensorsHeader =
        serde_json::from_slice(header).map_err(|error| EscapedText(&error.to_string()).to_string())?;
    Ok(header.tensors.iter().map(|(_, info)| info.data_offsets.1 as u64).max().unwrap_or(0))
}

/// Header entries in text order, including duplicates; a map would keep only the last of two equal names.
struct SafetensorsHeader {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, TensorInfo)>,
}

fn read_header(cursor: &mut Cursor) -> Result<SafetensorsHeader> {
    let len = cursor.u64("the header length")?;
    if cursor.next(1).first().is_some_and(|&first| first != b'{') {
        return Err(wrong_magic(cursor.source, "a safetensors file"));
    }
    let at = cursor.at;
    let text = cursor.take(len, "the header")?;
    serde_json::from_slice(text).map_err(|error| {
        let offset = at + position(text, &error);
        Error::BadContainer {
            file: cursor.source.path.clone(),
            format: "safetensors",
            problem: format!("header at byte {offset}: {}", EscapedText(&error.to_string())),
        }
    })
}

/// Returns the offset of the error in `text`; serde_json counts lines and columns from 1.
fn position(text: &[u8], error: &serde_json::Error) -> usize {
    let lines_before = text.split_inclusive(|&byte| byte == b'\n').take(error.line().saturating_sub(1));
    lines_before.map(<[u8]>::len).sum::<usize>() + error.column().saturating_sub(1)
}

impl<'de> Deserialize<'de> for SafetensorsHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = SafetensorsHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SafetensorsHeader, A::Error> {
        let mut metadata = None;
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name != "__metadata__" {
                tensors.push((name, map.next_value()?));
            } else if metadata.replace(map.next_value()?).is_some() {
                return Err(A::Error::duplicate_field("__metadata__"));
            }
        }
        Ok(SafetensorsHeader { metadata: metadata.unwrap_or_default(), tensors })
    }
}

/// Returns a tensor's byte range, which must begin where the previous tensor ends: gaps are not allowed.
fn place(
    source: &FileBytes,
    data_start: usize,
    previous_end: usize,
    tensor: EscapedText,
    info: &TensorInfo,
) -> Result<(DType, Range<usize>)> {
    let (start, end) = info.data_offsets;
    let offset = data_start.saturating_add(start);
    let dtype = known_dtype(source, offset, tensor, info.dtype)?;
    if offset != previous_end {
        let expected = format_args!("{}, the end of the previous tensor", previous_end - data_start);
        return Err(source.bad_tensor(tensor, offset, "start of the data", start, expected));
    }
    let Some(bytes) = stored_bytes(dtype, &info.shape) else {
        return Err(source.bad_tensor(tensor, offset, "shape", "too large", "a size that fits in memory"));
    };
    if end.checked_sub(start) != Some(bytes) {
        let found = format_args!("{start} to {end}");
        let expected = format_args!("{bytes} bytes, the size of its shape and type");
        return Err(source.bad_tensor(tensor, offset, "range of the data", found, expected));
    }
    match offset.checked_add(bytes) {
        Some(end) if end <= source.data.len() => Ok((dtype, offset..end)),
        _ => Err(source.truncated(format_args!("tensor '{tensor}'"), offset, bytes as u64)),
    }
}

fn known_dtype(source: &FileBytes, offset: usize, tensor: EscapedText, dtype: Dtype) -> Result<DType> {
    Ok(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F8_E4M3 => DType::F8_E4M3,
        Dtype::F8_E5M2 => DType::F8_E5M2,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::BOOL,
        _ => {
            return Err(Error::Format(FormatError::RefusedTensorType {
                file: source.path.clone(),
                tensor: tensor.to_string(),
                offset: offset as u64,
                name: dtype.to_string(),
                hint: "save it as F32, F16 or BF16",
            }));
        }
    })
}

/// Returns an error for bytes after the last tensor. The format forbids them, since they could hide a second file.
fn refuse_rest(source: &FileBytes, end: usize) -> Result<()> {
    let rest = source.data.len() - end;
    if rest > 0 {
        let found = format_args!("followed by {rest} more bytes");
        return Err(source.bad(end, "the end of the last tensor", found, "the end of the file"));
    }
    Ok(())
}
