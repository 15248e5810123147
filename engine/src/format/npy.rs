//! `.npy` files with one NumPy array: a magic, a header that is a Python dict as text, and the elements.
//!
//! The header is parsed here because npyz expects trusted files: version 0.9 allocates what the header states,
//! multiplies shapes unchecked (a panic, or a wrong size in release builds), and its parser takes time exponential in
//! the nesting depth of brackets. Tests compare reading and writing with npyz.

use super::cursor::Cursor;
use super::detection::wrong_magic;
use super::source::FileBytes;
use super::stored_bytes;
use crate::error::Result;
use crate::weight::{DType, StoredTensor};

/// Reads an array of plain, little-endian numbers in C order. NumPy has no bf16 and no 8-bit floats; writers store
/// their bits as unsigned integers of the same width. A file does not show this, so the caller gives the actual
/// type as `bits`.
///
/// # Errors
/// If the file is damaged or truncated, or contains anything else: Python objects, structures, strings.
pub fn read(source: &FileBytes, bits: Option<DType>) -> Result<StoredTensor> {
    let mut cursor = Cursor::new(source);
    let len = read_preamble(&mut cursor)?;
    let header = NpyHeader { source, at: cursor.at, text: cursor.take(len, "the header")? };
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

/// Reads magic and version; returns the length of the header.
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

/// Header text: a Python dict with three entries.
struct NpyHeader<'a> {
    source: &'a FileBytes,
    at: usize,
    text: &'a [u8],
}

impl<'a> NpyHeader<'a> {
    /// Returns the text after `'key':`.
    fn entry(&self, key: &str) -> Result<&'a str> {
        let find = || {
            let dict = str::from_utf8(self.text).ok()?.trim().strip_prefix('{')?.strip_suffix('}')?;
            let (_, rest) = dict.split_once(&format!("'{key}'"))?;
            rest.trim_start().strip_prefix(':').map(str::trim_start)
        };
        find().ok_or_else(|| {
            let expected = "a dict with descr, fortran_order and shape, as numpy.save writes it";
            self.source.bad(self.at, "the header", format_args!("text without '{key}'"), expected)
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
        // Without a quoted name, the value is a structured type's list of fields.
        let name = self.entry("descr")?.strip_prefix('\'').and_then(|rest| rest.split_once('\''));
        let (name, _) = name.ok_or_else(|| refuse("a structured type".into()))?;
        let known = TypeName::of(name).ok_or_else(|| refuse("an unknown type".into()))?;
        known.plain(bits).ok_or_else(|| refuse(format!("'{name}' ({})", known.what())))
    }

    fn refuse_fortran_order(&self) -> Result<()> {
        if self.entry("fortran_order")?.starts_with("False") {
            return Ok(());
        }
        let expected = "False; save np.ascontiguousarray(array) instead";
        Err(self.source.bad(self.at, "fortran_order", "not False", expected))
    }

    /// Returns the shape, and the number of bytes for its elements.
    fn shape(&self, dtype: DType) -> Result<(Vec<usize>, usize)> {
        let tuple = self.entry("shape")?.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        let shape = tuple.and_then(|(lengths, _)| parse_lengths(lengths));
        let shape = shape.filter(|shape| shape.len() <= MOST_AXES);
        let sized = shape.and_then(|shape| stored_bytes(dtype, &shape).map(|bytes| (shape, bytes)));
        sized.ok_or_else(|| {
            let expected = "a tuple of at most 64 integers whose product fits in memory";
            self.source.bad(self.at, "shape", "invalid", expected)
        })
    }
}

/// Maximum number of axes, which is NumPy's own limit. It also keeps shapes short enough for a message.
const MOST_AXES: usize = 64;

/// Parses the inside of a tuple: `""`, `"3,"`, `"2, 3"`.
fn parse_lengths(lengths: &str) -> Option<Vec<usize>> {
    let lengths = lengths.trim();
    if lengths.is_empty() {
        return Some(Vec::new());
    }
    lengths.strip_suffix(',').unwrap_or(lengths).split(',').map(|len| len.trim().parse().ok()).collect()
}

/// NumPy's name of a type: `<f4` is a little-endian float of 4 bytes.
struct TypeName {
    order: char,
    kind: char,
    size: usize,
}

impl TypeName {
    /// Parses a type name. Time types have a unit in brackets, such as `<M8[us]`.
    fn of(name: &str) -> Option<Self> {
        let name = name.split_once('[').map_or(name, |(name, _)| name);
        let mut letters = name.chars();
        let (order, kind) = (letters.next()?, letters.next()?);
        let is_known = "<>|".contains(order) && "biufcmMOSaUV".contains(kind);
        let size = match letters.as_str() {
            "" if kind == 'O' => 0,
            digits if digits.bytes().all(|digit| digit.is_ascii_digit()) => digits.parse().ok()?,
            _ => return None,
        };
        is_known.then_some(Self { order, kind, size })
    }

    /// Returns the type of plain little-endian numbers, or `bits` if it has the same size.
    fn plain(&self, bits: Option<DType>) -> Option<DType> {
        if self.order != '<' && !(self.order == '|' && self.size == 1) {
            return None;
        }
        match bits.filter(|bits| self.kind == 'u' && self.size == bits.block_bytes()) {
            Some(bits) => Some(bits),
            None => {
                NAMES.iter().find(|known| (known.1, known.2) == (self.kind, self.size)).map(|known| known.0)
            }
        }
    }

    /// Describes the content of an unsupported type.
    fn what(&self) -> &'static str {
        match self.kind {
            'O' => "Python objects: loading their pickle would run code from the file",
            'S' | 'a' | 'U' => "text",
            'V' => "bytes without a type; save bf16 as array.view('<u2'), and 8-bit types as '|u1'",
            _ if self.order == '>' => "big-endian",
            _ => "not plain numbers",
        }
    }
}

/// Plain types with NumPy's letter and size in bytes.
const NAMES: [(DType, char, usize); 12] = [
    (DType::F64, 'f', 8),
    (DType::F32, 'f', 4),
    (DType::F16, 'f', 2),
    (DType::U64, 'u', 8),
    (DType::U32, 'u', 4),
    (DType::U16, 'u', 2),
    (DType::U8, 'u', 1),
    (DType::I64, 'i', 8),
    (DType::I32, 'i', 4),
    (DType::I16, 'i', 2),
    (DType::I8, 'i', 1),
    (DType::BOOL, 'b', 1),
];

/// Returns the header of an array, as `numpy.save` writes it; `None` for a type without a NumPy name.
pub fn header(dtype: DType, shape: &[usize]) -> Option<Vec<u8>> {
    let (_, kind, size) = NAMES.iter().find(|known| known.0 == dtype)?;
    let order = if *size == 1 { '|' } else { '<' };
    let lengths: String = shape.iter().map(|length| format!("{length}, ")).collect();
    let lengths = if shape.len() == 1 { lengths.trim_end() } else { lengths.trim_end_matches(", ") };
    let dict = format!("{{'descr': '{order}{kind}{size}', 'fortran_order': False, 'shape': ({lengths}), }}");
    // Magic, version, header length and header are padded to a multiple of 64 bytes.
    let length = (10 + dict.len() + 1).next_multiple_of(64) - 10;
    let text = format!("{dict:<width$}\n", width = length - 1);
    Some([b"\x93NUMPY\x01\0", &(length as u16).to_le_bytes()[..], text.as_bytes()].concat())
}
