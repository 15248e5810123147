//! Typed metadata lookup for readers of models: missing keys and wrong types or values are errors.

use super::{Gguf, GgufNumber, GgufValue, StringArray};
use crate::error::{Error, KeyError, Result};

/// A Rust type to which metadata values can be converted without loss.
///
/// Converters differ: a key may be a u32 in one file, and an i32 or u64 in another. Any width is accepted if the
/// value fits.
pub trait MetadataType<'a>: Sized {
    /// Description of the expected type, for messages.
    const EXPECTED: &'static str;

    /// Converts a value; `None` if it is not of this type or does not fit.
    fn from_value(value: &'a GgufValue) -> Option<Self>;
}

impl Gguf {
    /// Returns true if a key has an array of numbers or bools, such as one value for each layer.
    pub(crate) fn is_array(&self, key: &str) -> bool {
        matches!(self.metadata.get(key), Some(GgufValue::Numbers(_) | GgufValue::Bools(_)))
    }

    /// Returns the value of a required key.
    ///
    /// # Errors
    /// If the key is missing, or its value does not convert to `T` without loss.
    pub fn require<'a, T: MetadataType<'a>>(&'a self, key: &str) -> Result<T> {
        let missing = || KeyError::Missing {
            file: self.tensors.path().to_owned(),
            key: key.to_owned(),
            hint: format!("expected {}; convert the model to GGUF again", T::EXPECTED),
        };
        Ok(self.optional(key)?.ok_or_else(missing)?)
    }

    /// Returns the value of an optional key.
    ///
    /// # Errors
    /// If the value does not convert to `T` without loss.
    pub fn optional<'a, T: MetadataType<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let converted =
            T::from_value(value).ok_or_else(|| Error::bad_key(self.tensors.path(), key, value, T::EXPECTED));
        converted.map(Some)
    }
}

macro_rules! from_numbers {
    ($($type:ident $convert:expr;)*) => {$(
        impl MetadataType<'_> for $type {
            const EXPECTED: &'static str = concat!("a number that fits ", stringify!($type));

            fn from_value(value: &GgufValue) -> Option<Self> {
                let GgufValue::Number(number) = value else { return None };
                $convert(*number)
            }
        }

        impl MetadataType<'_> for Vec<$type> {
            const EXPECTED: &'static str = concat!("an array of numbers that fit ", stringify!($type));

            fn from_value(value: &GgufValue) -> Option<Self> {
                let GgufValue::Numbers(numbers) = value else { return None };
                numbers.iter().map($convert).collect()
            }
        }
    )*};
}

from_numbers! {
    u32 integer;
    u64 integer;
    usize integer;
    i32 integer;
    f32 GgufNumber::f32;
}

fn integer<T: TryFrom<i128>>(number: GgufNumber) -> Option<T> {
    number.integer()?.try_into().ok()
}

impl MetadataType<'_> for bool {
    const EXPECTED: &'static str = "a bool";

    fn from_value(value: &GgufValue) -> Option<Self> {
        let GgufValue::Bool(value) = value else { return None };
        Some(*value)
    }
}

impl MetadataType<'_> for Vec<bool> {
    const EXPECTED: &'static str = "an array of bools";

    fn from_value(value: &GgufValue) -> Option<Self> {
        let GgufValue::Bools(values) = value else { return None };
        Some(values.clone())
    }
}

impl<'a> MetadataType<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: &'a GgufValue) -> Option<Self> {
        let GgufValue::String(text) = value else { return None };
        Some(text)
    }
}

impl<'a> MetadataType<'a> for &'a StringArray {
    const EXPECTED: &'static str = "an array of strings";

    fn from_value(value: &'a GgufValue) -> Option<Self> {
        let GgufValue::Strings(strings) = value else { return None };
        Some(strings)
    }
}
