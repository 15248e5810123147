//! Reading keys of a `config.json`.

use std::fmt::Display;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, KeyError, Result};

/// A `config.json`, or an object inside one, read key by key with refusals that name the file and the key.
#[derive(Clone)]
pub struct Config<'f> {
    path: &'f Path,
    json: &'f Value,
    /// The keys that lead to this object, each with a dot behind it.
    prefix: String,
    defaults: Option<&'f Value>,
}

impl<'f> Config<'f> {
    /// Wraps a parsed file.
    pub fn new(path: &'f Path, json: &'f Value) -> Self {
        Self { path, json, prefix: String::new(), defaults: None }
    }

    /// The file.
    pub fn path(&self) -> &'f Path {
        self.path
    }

    /// Adds `defaults` for keys that are absent.
    pub fn or_defaults(&self, defaults: &'f Value) -> Self {
        Self { defaults: Some(defaults), ..self.clone() }
    }

    /// The value of a key; `null` is as good as absent.
    pub fn get(&self, key: &str) -> Option<&'f Value> {
        let stated = self.json.get(key).filter(|value| !value.is_null());
        stated.or_else(|| self.defaults?.get(key)).filter(|value| !value.is_null())
    }

    /// Returns true if a key is null, in the file or by default.
    pub fn is_null(&self, key: &str) -> bool {
        self.json.get(key).or_else(|| self.defaults?.get(key)).is_some_and(Value::is_null)
    }

    /// An object under a key that may be absent.
    ///
    /// # Errors
    /// If it is there and not an object.
    pub fn object(&self, key: &str) -> Result<Option<Self>> {
        let prefix = format!("{}{key}.", self.prefix);
        let nested = |json: &'f Value| {
            json.is_object().then(|| Self { path: self.path, json, prefix: prefix.clone(), defaults: None })
        };
        self.optional(key, nested, "an object")
    }

    /// Returns true for an object without entries.
    pub fn is_empty(&self) -> bool {
        self.json.as_object().is_some_and(serde_json::Map::is_empty)
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
        self.optional_f32(key)?.ok_or_else(|| self.missing(key))
    }

    /// A number that may be absent.
    ///
    /// # Errors
    /// If it is there and not a number.
    pub fn optional_f32(&self, key: &str) -> Result<Option<f32>> {
        self.optional(key, |value| value.as_f64().map(|number| number as f32), "a number")
    }

    /// A text.
    ///
    /// # Errors
    /// If it is absent or not a text.
    pub fn require_str(&self, key: &str) -> Result<&'f str> {
        self.optional_str(key)?.ok_or_else(|| self.missing(key))
    }

    /// A text that may be absent.
    ///
    /// # Errors
    /// If it is there and not a text.
    pub fn optional_str(&self, key: &str) -> Result<Option<&'f str>> {
        self.optional(key, Value::as_str, "a text")
    }

    /// A token id, several of them, or none.
    ///
    /// # Errors
    /// If it is present and neither.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = |value: &'f Value| match value.as_array() {
            Some(several) => several.iter().map(id).collect(),
            None => Some(vec![id(value)?]),
        };
        Ok(self.optional(key, ids, "a token id or a list of them")?.unwrap_or_default())
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

    /// Makes sure that there are no other keys than these.
    ///
    /// # Errors
    /// The first that is another.
    pub fn only_keys(&self, known: &[&str]) -> Result<()> {
        let keys = self.json.as_object().into_iter().flatten();
        let unknown =
            keys.filter(|(_, value)| !value.is_null()).find(|(key, _)| !known.contains(&key.as_str()));
        unknown.map_or(Ok(()), |(key, value)| {
            Err(self.bad_key(key, value, format!("absent; known keys here: {}", known.join(", "))))
        })
    }

    /// A refusal of a key's value.
    pub fn bad_key(&self, key: &str, found: impl Display, expected: impl Display) -> Error {
        Error::bad_key(self.path, &format!("{}{key}", self.prefix), found, expected)
    }

    fn missing(&self, key: &str) -> Error {
        let hint = "every config.json of this architecture must state this key".to_owned();
        KeyError::Missing { file: self.path.to_owned(), key: format!("{}{key}", self.prefix), hint }.into()
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
