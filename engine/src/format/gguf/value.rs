//! Metadata values of a GGUF file: numbers, booleans, strings, and arrays of each.

use std::fmt::{self, Display};

use super::number::{GgufNumber, NumberArray, NumberType};
use crate::error::Result;
use crate::format::cursor::Cursor;
use crate::format::escape::EscapedText;

const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// A number.
    Number(GgufNumber),
    /// A boolean.
    Bool(bool),
    /// A string.
    String(String),
    /// An array of numbers.
    Numbers(NumberArray),
    /// An array of booleans.
    Bools(Vec<bool>),
    /// An array of strings, such as a vocabulary or merges.
    Strings(Box<StringArray>),
}

impl GgufValue {
    /// Reads the type of `key`'s value, then the value.
    pub(super) fn read(cursor: &mut Cursor, key: EscapedText) -> Result<Self> {
        let at = cursor.at;
        let value = format_args!("the value of '{key}'");
        let id = cursor.u32(format_args!("the value type of '{key}'"))?;
        if let Some(number_type) = NumberType::from_id(id) {
            let bytes = cursor.take(number_type.width() as u64, value)?;
            return Ok(GgufValue::Number(number_type.decode(bytes)));
        }
        match id {
            BOOL => read_bool(cursor, key).map(GgufValue::Bool),
            STRING => cursor.text(value).map(|text| GgufValue::String(text.to_owned())),
            ARRAY => Self::read_array(cursor, key),
            _ => Err(cursor.source.bad(at, format_args!("the value type of '{key}'"), id, "0 to 12")),
        }
    }

    fn read_array(cursor: &mut Cursor, key: EscapedText) -> Result<Self> {
        let at = cursor.at;
        let elements = format_args!("elements of '{key}'");
        let id = cursor.u32(format_args!("the element type of '{key}'"))?;
        if let Some(number_type) = NumberType::from_id(id) {
            return read_numbers(cursor, key, number_type).map(GgufValue::Numbers);
        }
        match id {
            BOOL => {
                let count = cursor.count(1, elements)?;
                (0..count).map(|_| read_bool(cursor, key)).collect::<Result<_>>().map(GgufValue::Bools)
            }
            STRING => StringArray::read(cursor, key).map(|strings| GgufValue::Strings(Box::new(strings))),
            // The specification allows arrays of arrays; no model has them, and llama.cpp rejects them too.
            _ => {
                let expected = "0 to 8 or 10 to 12; arrays of arrays are not read";
                Err(cursor.source.bad(at, format_args!("the element type of '{key}'"), id, expected))
            }
        }
    }
}

fn read_numbers(cursor: &mut Cursor, key: EscapedText, number_type: NumberType) -> Result<NumberArray> {
    let elements = format_args!("elements of '{key}'");
    let count = cursor.count(number_type.width(), elements)?;
    let start = cursor.at;
    cursor.take((count * number_type.width()) as u64, elements)?;
    Ok(NumberArray::new(number_type, cursor.source.data.slice(start..cursor.at)))
}

fn read_bool(cursor: &mut Cursor, key: EscapedText) -> Result<bool> {
    let at = cursor.at;
    match cursor.array(format_args!("the value of '{key}'"))? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(cursor.source.bad(at, format_args!("a bool of '{key}'"), other, "0 or 1")),
    }
}

/// Writes a single value with its type, or an array's type and length, always in one line.
impl Display for GgufValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgufValue::Number(number) => write!(f, "{number} ({})", number.number_type().name()),
            GgufValue::Bool(value) => write!(f, "{value} (bool)"),
            GgufValue::String(text) => write!(f, "\"{}\" (string)", EscapedText(text)),
            GgufValue::Numbers(numbers) => {
                write!(f, "{} numbers ({})", numbers.len(), numbers.number_type().name())
            }
            GgufValue::Bools(bools) => write!(f, "{} bools", bools.len()),
            GgufValue::Strings(strings) => write!(f, "{} strings", strings.len()),
        }
    }
}

/// Strings in one allocation. A vocabulary has about a hundred thousand strings, most of them a few bytes long.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StringArray {
    text: String,
    /// End of each string in `text`; a string starts at the end of the previous one.
    ends: Vec<usize>,
}

impl StringArray {
    fn read(cursor: &mut Cursor, key: EscapedText) -> Result<Self> {
        let count = cursor.count(size_of::<u64>(), format_args!("elements of '{key}'"))?;
        let mut strings = Self { text: String::new(), ends: Vec::with_capacity(count) };
        for index in 0..count {
            strings.text.push_str(cursor.text(format_args!("string {index} of '{key}'"))?);
            strings.ends.push(strings.text.len());
        }
        Ok(strings)
    }

    /// Returns one string.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.text[start..end])
    }

    /// Returns all strings, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Returns the number of strings.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
