//! GGUF, llama.cpp's model file, versions 2 and 3, little-endian: metadata, tensor descriptions, tensor data.
//!
//! The layout, as in `gguf.h` of ggml; strings are a u64 length and UTF-8:
//!
//! ```text
//! "GGUF"  version u32  tensor count u64  key count u64
//! per key:     name string, value type u32, value
//! per tensor:  name string, dimension count u32, dimensions u64 (innermost first), type u32, offset u64
//! padding to `general.alignment`, then the data that the offsets count from
//! ```

mod lookup;
mod number;
pub(crate) mod parts;
mod tensors;
mod types;
mod value;

pub use lookup::MetadataType;
pub use number::{GgufNumber, NumberArray, NumberType};
pub use parts::PartName;
pub use value::{GgufValue, StringArray};

use self::types::FileDialect;
use super::cursor::Cursor;
use super::detection::wrong_magic;
use super::escape::EscapedText;
use super::{FileBytes, NameIndex, TensorFile};
use crate::error::{FormatError, Result};

/// Alignment of files that do not state it.
const DEFAULT_ALIGNMENT: u32 = 32;
/// Key of the alignment.
const ALIGNMENT: &str = "general.alignment";
/// Minimum size of a metadata entry in bytes: the length of its key, the type of its value, and one byte of value.
const LEAST_KEY: usize = 8 + 4 + 1;

/// A checked GGUF file.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Alignment of tensor data in bytes.
    pub alignment: u32,
    /// Weights.
    pub tensors: TensorFile,
    metadata: NameIndex<GgufValue>,
}

impl Gguf {
    /// Reads and checks everything except the values of the weights.
    ///
    /// # Errors
    /// If the file is damaged or contradicts itself, or a tensor has an unsupported type.
    pub fn read(source: &FileBytes) -> Result<Self> {
        let mut cursor = Cursor::new(source);
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.count(tensors::LEAST_BYTES, "tensors")?;
        let key_count = cursor.count(LEAST_KEY, "metadata keys")?;
        let (metadata, alignment) = read_metadata(&mut cursor, key_count)?;
        let context = tensors::TensorContext { alignment, origin: origin(&metadata) };
        let tensors = tensors::read(&mut cursor, tensor_count, context)?;
        Ok(Self { version, alignment, tensors, metadata })
    }

    /// Returns all keys and values, in file order. To read a model, use [`Gguf::require`] instead.
    pub fn metadata(&self) -> &NameIndex<GgufValue> {
        &self.metadata
    }
}

fn read_version(cursor: &mut Cursor) -> Result<u32> {
    let source = cursor.source;
    if cursor.array("the magic")? != *b"GGUF" {
        return Err(wrong_magic(source, "a GGUF file"));
    }
    let version = cursor.u32("the version")?;
    let unsupported =
        |hint| Err(FormatError::UnsupportedVersion { file: source.path.clone(), version, hint }.into());
    match version {
        2 | 3 => Ok(version),
        // As in llama.cpp, a version with a zero low half indicates the other byte order, since no version is that
        // large.
        _ if version != 0 && version.trailing_zeros() >= 16 => {
            Err(FormatError::BigEndian { file: source.path.clone() }.into())
        }
        0 | 1 => unsupported("expected 2 or 3; convert the original model to GGUF again"),
        _ => unsupported("expected 2 or 3; a newer xcheck may support it"),
    }
}

/// Reads the metadata and the alignment, which is needed before any tensor is read.
fn read_metadata(cursor: &mut Cursor, count: usize) -> Result<(NameIndex<GgufValue>, u32)> {
    let mut alignment = DEFAULT_ALIGNMENT;
    let mut entries = Vec::with_capacity(count);
    let mut offsets = Vec::with_capacity(count);
    for index in 0..count {
        offsets.push(cursor.at);
        let key = cursor.text(format_args!("metadata key {index}"))?;
        let value_at = cursor.at;
        let value = GgufValue::read(cursor, EscapedText(key))?;
        if key == ALIGNMENT {
            alignment = read_alignment(cursor.source, value_at, &value)?;
        }
        entries.push((key.to_owned(), value));
    }
    Ok((NameIndex::new(cursor.source, "key", entries, &offsets)?, alignment))
}

fn read_alignment(source: &FileBytes, offset: usize, value: &GgufValue) -> Result<u32> {
    match *value {
        GgufValue::Number(GgufNumber::U32(alignment)) if alignment.is_power_of_two() => Ok(alignment),
        _ => Err(source.bad(offset, ALIGNMENT, value, "a u32 that is a power of two")),
    }
}

/// Returns the file's dialect: bitnet.cpp's fork assigned type ids that have another meaning in upstream files.
fn origin(metadata: &NameIndex<GgufValue>) -> FileDialect {
    let architecture = metadata.get("general.architecture");
    let file_type = metadata.get("general.file_type");
    FileDialect {
        bitnet: matches!(architecture, Some(GgufValue::String(name)) if name.starts_with("bitnet")),
        file_type: file_type.and_then(u32::from_value),
    }
}
