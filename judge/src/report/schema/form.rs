//! Conversion between values of other modules and their form in `report.json`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that has a form in `report.json`.
pub trait JsonForm: Sized {
    /// The value in memory.
    type Value;

    fn of(value: Self::Value) -> Self;

    fn value(self) -> Self::Value;
}

impl<F: JsonForm> JsonForm for Option<F> {
    type Value = Option<F::Value>;

    fn of(value: Self::Value) -> Self {
        value.map(F::of)
    }

    fn value(self) -> Self::Value {
        self.map(F::value)
    }
}

impl<F: JsonForm> JsonForm for Vec<F> {
    type Value = Vec<F::Value>;

    fn of(values: Self::Value) -> Self {
        values.into_iter().map(F::of).collect()
    }

    fn value(self) -> Self::Value {
        self.into_iter().map(F::value).collect()
    }
}

macro_rules! plain {
    ($($type:ty),*) => {
        $(impl JsonForm for $type {
            type Value = Self;

            fn of(value: Self) -> Self {
                value
            }

            fn value(self) -> Self {
                self
            }
        })*
    };
}

plain!(bool, usize, String);

/// Defines structs of `report.json` that have the fields of a struct of another module. A field with another name in
/// the file has `#[serde(rename)]`.
macro_rules! forms {
    ($($(#[$doc:meta])* $form:ident of $value:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(serde::Serialize, serde::Deserialize)]
        pub struct $form { $($(#[$attribute])* $field: $type,)* }

        impl JsonForm for $form {
            type Value = $value;

            fn of($value { $($field,)* }: $value) -> Self {
                Self { $($field: JsonForm::of($field),)* }
            }

            fn value(self) -> $value {
                $value { $($field: self.$field.value(),)* }
            }
        })*
    };
}

pub(super) use forms;

/// A number in JSON. NaN and infinities become the strings "nan", "inf" and "-inf".
#[derive(Clone, Copy)]
pub struct JsonNumber(pub f64);

impl JsonForm for JsonNumber {
    type Value = f64;

    fn of(number: f64) -> Self {
        Self(number)
    }

    fn value(self) -> f64 {
        self.0
    }
}

impl Serialize for JsonNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            number if number.is_nan() => serializer.serialize_str("nan"),
            f64::INFINITY => serializer.serialize_str("inf"),
            f64::NEG_INFINITY => serializer.serialize_str("-inf"),
            number => serializer.serialize_f64(number),
        }
    }
}

impl<'de> Deserialize<'de> for JsonNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum JsonValue {
            Finite(f64),
            Word(String),
        }
        match JsonValue::deserialize(deserializer)? {
            JsonValue::Finite(number) => Ok(Self(number)),
            JsonValue::Word(word) => match word.as_str() {
                "nan" => Ok(Self(f64::NAN)),
                "inf" => Ok(Self(f64::INFINITY)),
                "-inf" => Ok(Self(f64::NEG_INFINITY)),
                _ => Err(D::Error::custom(format!(
                    "invalid number '{word}', expected a number, nan, inf or -inf"
                ))),
            },
        }
    }
}
