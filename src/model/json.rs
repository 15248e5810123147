//! Reading keys of a `config.json`.

use std::fmt::Display;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::Source;

/// A `config.json`, read key by key with refusals that name the file and the key.
pub struct Config<'f> {
    source: &'f Source,
    json: &'f Value,
}

impl<'f> Config<'f> {
    /// Wraps a parsed file.
    pub fn new(source: &'f Source, json: &'f Value) -> Self {
        Self { source, json }
    }

    /// The value of a key; `null` is as good as absent.
    pub fn get(&self, key: &str) -> Option<&'f Value> {
        self.json.get(key).filter(|value| !value.is_null())
    }

    /// A count.
    ///
    /// # Errors
    /// If it is absent or not a whole number.
    pub fn require_usize(&self, key: &str) -> Result<usize> {
        self.optional_usize(key)?.ok_or_else(|| self.missing(key))
    }

    /// A count that may be absent.
    ///
    /// # Errors
    /// If it is there and not a whole number.
    pub fn optional_usize(&self, key: &str) -> Result<Option<usize>> {
        let whole = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.optional(key, whole, "a whole number")
    }

    /// A number.
    ///
    /// # Errors
    /// If it is absent or not a number.
    pub fn require_f32(&self, key: &str) -> Result<f32> {
        let number = self.optional(key, |value| value.as_f64().map(|number| number as f32), "a number")?;
        number.ok_or_else(|| self.missing(key))
    }

    /// A text.
    ///
    /// # Errors
    /// If it is absent or not a text.
    pub fn require_str(&self, key: &str) -> Result<&'f str> {
        self.optional(key, Value::as_str, "a text")?.ok_or_else(|| self.missing(key))
    }

    /// The base of the RoPE frequencies, wherever this version of transformers wrote it: `rope_parameters`
    /// (5.x) or `rope_theta` (4.x).
    ///
    /// # Errors
    /// If it is there and not a number.
    pub fn rope_theta(&self) -> Result<Option<f32>> {
        let theta = |value: &Value| value.as_f64().map(|number| number as f32);
        let nested = |value: &Value| match value.get("rope_theta") {
            Some(number) => theta(number).map(Some),
            None => Some(None),
        };
        match self.optional("rope_parameters", nested, "an object with a number 'rope_theta'")? {
            Some(Some(number)) => Ok(Some(number)),
            _ => self.optional("rope_theta", theta, "a number"),
        }
    }

    /// A switch that may be absent.
    ///
    /// # Errors
    /// If it is there and not a switch.
    pub fn optional_bool(&self, key: &str) -> Result<Option<bool>> {
        self.optional(key, Value::as_bool, "true or false")
    }

    /// Makes sure that a key, where present, asks for what the forward pass does.
    ///
    /// # Errors
    /// If it asks for something else.
    pub fn only(&self, key: &str, supported: &[Value], what: &str) -> Result<()> {
        match self.get(key) {
            Some(value) if !supported.contains(value) => Err(self.bad_key(key, value, what)),
            _ => Ok(()),
        }
    }

    /// A refusal of a key's value.
    pub fn bad_key(&self, key: &str, found: impl Display, expected: impl Display) -> Error {
        Error::bad_key(&self.source.path, key, found, expected)
    }

    fn missing(&self, key: &str) -> Error {
        let hint = "a config.json of this architecture has it".to_owned();
        Error::MissingKey { file: self.source.path.clone(), key: key.to_owned(), hint }
    }

    fn optional<T>(
        &self,
        key: &str,
        read: impl Fn(&'f Value) -> Option<T>,
        expected: &str,
    ) -> Result<Option<T>> {
        let value = self.get(key).map(|value| read(value).ok_or_else(|| self.bad_key(key, value, expected)));
        value.transpose()
    }
}
