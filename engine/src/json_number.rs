//! Numbers in JSON. NaN and infinities become the strings "nan", "inf" and "-inf".

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number in JSON.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct JsonNumber(#[serde(with = "crate::json_number")] pub f64);

/// Writes a number, for `#[serde(with)]`.
///
/// # Errors
/// The errors of the serializer.
pub fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match *number {
        number if number.is_nan() => serializer.serialize_str("nan"),
        f64::INFINITY => serializer.serialize_str("inf"),
        f64::NEG_INFINITY => serializer.serialize_str("-inf"),
        number => serializer.serialize_f64(number),
    }
}

/// Reads a number, for `#[serde(with)]`.
///
/// # Errors
/// If the value is not a number, "nan", "inf" or "-inf".
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum JsonValue {
        Finite(f64),
        Word(String),
    }
    match JsonValue::deserialize(deserializer)? {
        JsonValue::Finite(number) => Ok(number),
        JsonValue::Word(word) => match word.as_str() {
            "nan" => Ok(f64::NAN),
            "inf" => Ok(f64::INFINITY),
            "-inf" => Ok(f64::NEG_INFINITY),
            _ => {
                Err(D::Error::custom(format!("invalid number '{word}', expected a number, nan, inf or -inf")))
            }
        },
    }
}

/// Optional numbers, for `#[serde(with)]`. `None` is null.
pub mod optional {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::json_number::JsonNumber;

    /// Writes a number or null.
    ///
    /// # Errors
    /// The errors of the serializer.
    pub fn serialize<S: Serializer>(number: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        number.map(JsonNumber).serialize(serializer)
    }

    /// Reads a number or null.
    ///
    /// # Errors
    /// If the value is not null, a number, "nan", "inf" or "-inf".
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<JsonNumber>::deserialize(deserializer)?.map(|number| number.0))
    }
}
