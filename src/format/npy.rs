//! `.npy`, one NumPy array: a magic, a header that is a Python dict in text, the elements.
//!
//! The header is read here and not by npyz, which is made for files one trusts: version 0.9 allocates what
//! the header announces, multiplies shapes unchecked (a panic, or a wrong size in release builds), and its
//! parser takes time exponential in the depth of brackets. NumPy's type strings are npyz's.

use npyz::{Endianness, TypeChar, TypeStr};

use super::cursor::Cursor;
use super::detect::wrong_magic;
use super::source::Source;
use super::stored_bytes;
use crate::error::Result;
use crate::weight::{DType, StoredTensor};

/// Reads an array of plain, little-endian numbers in C order. NumPy has no bf16 and no types of 8 bits, so their bits are
/// stored as unsigned integers of the same width, and only whoever wrote the file knows: `bits` is such a type.
///
/// # Errors
/// If it is damaged or cut short, or holds anything else: Python objects, structures, text.
pub fn read(source: &Source, bits: Option<DType>) -> Result<StoredTensor> {
    let mut cursor = Cursor::new(source);
    let len = read_preamble(&mut cursor)?;
    let header = Header { source, at: cursor.at, text: cursor.take(len, "the header")? };
    let dtype = header.dtype(bits)?;
    header.refuse_fortran_order()?;
    let (shape, bytes) = header.shape(dtype)?;
    let start = cursor.at;
    cursor.take(bytes as u64, format_args!("the data, {shape:?} of {dtype},"))?;
    if cursor.left() > 0 {
        let found = format_args!("followed by {} more bytes", cursor.left());
        return Err(source.bad(cursor.at, "the end of the array", found, "the end of the file"));
    }
    Ok(StoredTensor { dtype, shape, data: source.data.slice(start..cursor.at) })
}

/// Magic and version; gives back the length of the header.
fn read_preamble(cursor: &mut Cursor) -> Result<u64> {
    if cursor.array("the magic")? != *b"\x93NUMPY" {
        return Err(wrong_magic(cursor.source, "a NumPy array"));
    }
    let at = cursor.at;
    match cursor.array("the version")? {
        [1, 0] => cursor.array("the header length").map(|len| u16::from_le_bytes(len).into()),
        [2 | 3, 0] => cursor.u32("the header length").map(u64::from),
        [major, minor] => {
            let found = format_args!("{major}.{minor}");
            Err(cursor.source.bad(at, "the version", found, "1.0, 2.0 or 3.0"))
        }
    }
}

/// The text of a Python dict with three entries.
struct Header<'a> {
    source: &'a Source,
    at: usize,
    text: &'a [u8],
}

impl<'a> Header<'a> {
    /// What stands after `'key':`.
    fn entry(&self, key: &str) -> Result<&'a str> {
        let find = || {
            let dict = str::from_utf8(self.text).ok()?.trim().strip_prefix('{')?.strip_suffix('}')?;
            let (_, rest) = dict.split_once(&format!("'{key}'"))?;
            rest.trim_start().strip_prefix(':').map(str::trim_start)
        };
        find().ok_or_else(|| {
            let expected = "a dict with descr, fortran_order and shape, as numpy.save writes it";
            self.source.bad(self.at, "the header", format_args!("a text without '{key}'"), expected)
        })
    }

    fn dtype(&self, bits: Option<DType>) -> Result<DType> {
        let refuse = |found: String| {
            self.source.bad(
                self.at,
                "descr",
                found,
                "little-endian numbers; save array.astype('<f4') instead",
            )
        };
        // Anything but a quoted name is the list of a structured type's fields.
        let name = self.entry("descr")?.strip_prefix('\'').and_then(|rest| rest.split_once('\''));
        let (name, _) = name.ok_or_else(|| refuse("a structured type".into()))?;
        let type_str: TypeStr = name.parse().map_err(|_| refuse("an unknown type".into()))?;
        plain_dtype(&type_str, bits).ok_or_else(|| refuse(format!("'{type_str}' ({})", kind(&type_str))))
    }

    fn refuse_fortran_order(&self) -> Result<()> {
        if self.entry("fortran_order")?.starts_with("False") {
            return Ok(());
        }
        let expected = "False; save np.ascontiguousarray(array) instead";
        Err(self.source.bad(self.at, "fortran_order", "not False", expected))
    }

    /// The shape, and the bytes that elements of that shape take.
    fn shape(&self, dtype: DType) -> Result<(Vec<usize>, usize)> {
        let tuple = self.entry("shape")?.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        let shape = tuple.and_then(|(lengths, _)| parse_lengths(lengths));
        let shape = shape.filter(|shape| shape.len() <= MOST_AXES);
        let sized = shape.and_then(|shape| stored_bytes(dtype, &shape).map(|bytes| (shape, bytes)));
        sized.ok_or_else(|| {
            let expected = "a tuple of at most 64 whole numbers whose product memory can hold";
            self.source.bad(self.at, "shape", "not that", expected)
        })
    }
}

/// NumPy's own limit; it also keeps shapes short enough for a message.
const MOST_AXES: usize = 64;

/// The inside of a tuple: `""`, `"3,"`, `"2, 3"`.
fn parse_lengths(lengths: &str) -> Option<Vec<usize>> {
    let lengths = lengths.trim();
    if lengths.is_empty() {
        return Some(Vec::new());
    }
    lengths.strip_suffix(',').unwrap_or(lengths).split(',').map(|len| len.trim().parse().ok()).collect()
}

fn plain_dtype(type_str: &TypeStr, bits: Option<DType>) -> Option<DType> {
    if type_str.endianness() == Endianness::Big {
        return None;
    }
    let unsigned = (type_str.type_char() == TypeChar::Uint).then_some(type_str.size_field());
    if let Some(bits) = bits.filter(|bits| unsigned == Some(bits.block_bytes() as u64)) {
        return Some(bits);
    }
    Some(match (type_str.type_char(), type_str.size_field()) {
        (TypeChar::Float, 8) => DType::F64,
        (TypeChar::Float, 4) => DType::F32,
        (TypeChar::Float, 2) => DType::F16,
        (TypeChar::Uint, 8) => DType::U64,
        (TypeChar::Uint, 4) => DType::U32,
        (TypeChar::Uint, 2) => DType::U16,
        (TypeChar::Uint, 1) => DType::U8,
        (TypeChar::Int, 8) => DType::I64,
        (TypeChar::Int, 4) => DType::I32,
        (TypeChar::Int, 2) => DType::I16,
        (TypeChar::Int, 1) => DType::I8,
        (TypeChar::Bool, 1) => DType::BOOL,
        _ => return None,
    })
}

/// What a type that is refused holds.
fn kind(type_str: &TypeStr) -> &'static str {
    match type_str.type_char() {
        TypeChar::Object => "Python objects: loading them would run code from the file, their pickle",
        TypeChar::ByteStr | TypeChar::UnicodeStr => "text",
        TypeChar::RawData => "bytes without a type; bf16 is saved as array.view('<u2'), and 8 bits as '|u1'",
        _ if type_str.endianness() == Endianness::Big => "big-endian",
        _ => "no plain numbers",
    }
}
