//! Reader for the keys of a `config.json`.

use std::fmt::Display;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, KeyError, Result};
use crate::format::FileBytes;

/// Parses a JSON file. Python writes infinite numbers as bare words; they become strings.
///
/// # Errors
/// If it is not JSON.
pub(super) fn json_of(file: &FileBytes) -> Result<Value> {
    let parsed = serde_json::from_slice(&file.data);
    let with_texts = || serde_json::from_slice(&quoted_infinities(&file.data)).ok();
    parsed.or_else(|error| with_texts().ok_or(error)).map_err(|error| Error::BadContainer {
        file: file.path.clone(),
        format: "JSON",
        problem: error.to_string(),
    })
}

/// Returns the JSON with quotation marks around every `Infinity` that is outside of strings.
fn quoted_infinities(json: &[u8]) -> Vec<u8> {
    const WORD: &[u8] = b"Infinity";
    let (mut quoted, mut is_text, mut at) = (Vec::with_capacity(json.len()), false, 0);
    while let Some(&byte) = json.get(at) {
        let length = match byte {
            b'\\' if is_text => 2,
            b'I' if !is_text && json[at..].starts_with(WORD) => {
                quoted.extend([b"\"", WORD, b"\""].concat());
                at += WORD.len();
                continue;
            }
            _ => 1,
        };
        is_text ^= byte == b'"';
        let end = json.len().min(at + length);
        quoted.extend(&json[at..end]);
        at = end;
    }
    quoted
}

/// A `config.json`, or an object inside one. Errors name the file and the key.
#[derive(Clone)]
pub struct Config<'f> {
    path: &'f Path,
    json: &'f Value,
    /// Keys that lead to this object, each followed by a dot.
    prefix: String,
    defaults: Option<&'f Value>,
    /// Keys, each with another key that takes precedence over it.
    aliases: &'static [(&'static str, &'static str)],
}

impl<'f> Config<'f> {
    /// Wraps a parsed file.
    pub fn new(path: &'f Path, json: &'f Value) -> Self {
        Self { path, json, prefix: String::new(), defaults: None, aliases: &[] }
    }

    /// Returns the file's path.
    pub(crate) fn path(&self) -> &'f Path {
        self.path
    }

    /// Sets defaults for absent keys.
    pub(crate) fn or_defaults(&self, defaults: &'f Value) -> Self {
        Self { defaults: Some(defaults), ..self.clone() }
    }

    /// Sets keys that take precedence over other keys: each pair is a key and the key that it replaces.
    pub(crate) fn with_aliases(&self, aliases: &'static [(&'static str, &'static str)]) -> Self {
        Self { aliases, ..self.clone() }
    }

    /// Returns the value of a key; `null` counts as absent.
    pub(crate) fn get(&self, key: &str) -> Option<&'f Value> {
        let key = self.stated_key(key);
        let stated = self.json.get(key).filter(|value| !value.is_null());
        stated.or_else(|| self.defaults?.get(key)).filter(|value| !value.is_null())
    }

    /// Returns the key that the file has in place of `key`, or `key` itself.
    fn stated_key<'k>(&self, key: &'k str) -> &'k str {
        let alias = self.aliases.iter().find(|(alias, own)| *own == key && self.states(alias));
        alias.map_or(key, |(alias, _)| alias)
    }

    /// Returns true if a key is null, in the file or by default.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.json.get(key).or_else(|| self.defaults?.get(key)).is_some_and(Value::is_null)
    }

    /// Returns true if the file itself states a value for a key.
    pub(crate) fn states(&self, key: &str) -> bool {
        self.json.get(key).is_some_and(|value| !value.is_null())
    }

    /// Returns the object under a key, if it exists.
    ///
    /// # Errors
    /// If the value is not an object.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Self>> {
        let prefix = format!("{}{key}.", self.prefix);
        let nested = |json: &'f Value| {
            json.is_object().then(|| Self {
                path: self.path,
                json,
                prefix: prefix.clone(),
                defaults: None,
                aliases: &[],
            })
        };
        self.optional(key, nested, "an object")
    }

    /// Returns true for an object without entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.json.as_object().is_some_and(serde_json::Map::is_empty)
    }

    /// Returns a count.
    ///
    /// # Errors
    /// If the key is absent, or not a whole number.
    pub(crate) fn require_usize(&self, key: &str) -> Result<usize> {
        self.optional_usize(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns a count, if the key exists.
    ///
    /// # Errors
    /// If the value is not a whole number.
    pub(crate) fn optional_usize(&self, key: &str) -> Result<Option<usize>> {
        let whole = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.optional(key, whole, "a whole number")
    }

    /// Returns a number.
    ///
    /// # Errors
    /// If the key is absent, or not a number.
    pub(crate) fn require_f32(&self, key: &str) -> Result<f32> {
        self.optional_f32(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns a number, if the key exists.
    ///
    /// # Errors
    /// If the value is not a number.
    pub(crate) fn optional_f32(&self, key: &str) -> Result<Option<f32>> {
        self.optional(key, |value| value.as_f64().map(|number| number as f32), "a number")
    }

    /// Returns a positive number, if the key exists.
    ///
    /// # Errors
    /// If the value is not a finite number above 0.
    pub(crate) fn optional_positive(&self, key: &str) -> Result<Option<f32>> {
        let number = |value: &Value| value.as_f64().map(|number| number as f32);
        let positive = |value: &Value| number(value).filter(|number| *number > 0.0 && number.is_finite());
        self.optional(key, positive, "a positive number")
    }

    /// Returns a string.
    ///
    /// # Errors
    /// If the key is absent, or not a string.
    pub(crate) fn require_str(&self, key: &str) -> Result<&'f str> {
        self.optional_str(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns a string, if the key exists.
    ///
    /// # Errors
    /// If the value is not a string.
    pub(crate) fn optional_str(&self, key: &str) -> Result<Option<&'f str>> {
        self.optional(key, Value::as_str, "a text")
    }

    /// Returns a token id or a list of ids; empty if the key is absent.
    ///
    /// # Errors
    /// If the value is neither an id nor a list of ids.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = |value: &'f Value| match value.as_array() {
            Some(several) => several.iter().map(id).collect(),
            None => Some(vec![id(value)?]),
        };
        Ok(self.optional(key, ids, "a token id or a list of them")?.unwrap_or_default())
    }

    /// Returns a list of texts; empty if the key is absent.
    ///
    /// # Errors
    /// If the value is not a list of texts.
    pub(crate) fn texts(&self, key: &str) -> Result<Vec<&'f str>> {
        let texts = |value: &'f Value| value.as_array()?.iter().map(Value::as_str).collect();
        Ok(self.optional(key, texts, "a list of texts")?.unwrap_or_default())
    }

    /// Returns the texts of a list of texts, or of a list of such lists; empty if the key is absent.
    ///
    /// # Errors
    /// If the value is neither.
    pub(crate) fn nested_texts(&self, key: &str) -> Result<Vec<&'f str>> {
        let texts = |value: &'f Value| {
            let parts = value.as_array()?.iter().map(|part| match part.as_array() {
                Some(texts) => texts.iter().map(Value::as_str).collect::<Option<Vec<_>>>(),
                None => Some(vec![part.as_str()?]),
            });
            Some(parts.collect::<Option<Vec<_>>>()?.concat())
        };
        Ok(self.optional(key, texts, "a list of texts")?.unwrap_or_default())
    }

    /// Returns one flag per layer, which is true if a list of layer indices contains the layer. `None` if the key does
    /// not exist.
    ///
    /// # Errors
    /// If the value is not a list of layers.
    pub(crate) fn marked_layers(&self, key: &str, n_layers: usize) -> Result<Option<Vec<bool>>> {
        let marked = |value: &Value| {
            let mut layers = vec![false; n_layers];
            for index in value.as_array()? {
                *layers.get_mut(usize::try_from(index.as_u64()?).ok()?)? = true;
            }
            Some(layers)
        };
        let last = n_layers.saturating_sub(1);
        self.optional(key, marked, &format!("a list of layers from 0 to {last}"))
    }

    /// Returns an interval of layers, if the key exists.
    ///
    /// # Errors
    /// If the value is not a positive whole number.
    pub(crate) fn optional_interval(&self, key: &str) -> Result<Option<usize>> {
        match self.optional_usize(key)? {
            Some(0) => Err(self.bad_key(key, 0, "1 or more layers")),
            every => Ok(every),
        }
    }

    /// Returns two positive counts.
    ///
    /// # Errors
    /// If the key is absent, or the value is not a list of two positive whole numbers.
    pub(crate) fn pair(&self, key: &str) -> Result<[usize; 2]> {
        let count = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|&count| count > 0);
        let pair = |value: &Value| match value.as_array()?.as_slice() {
            [first, second] => Some([count(first)?, count(second)?]),
            _ => None,
        };
        self.optional(key, pair, "two positive whole numbers")?.ok_or_else(|| self.missing(key))
    }

    /// Returns the keys of the object, without those whose value is null.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'f str> {
        let entries = self.json.as_object().into_iter().flatten();
        entries.filter(|(_, value)| !value.is_null()).map(|(key, _)| key.as_str())
    }

    /// Returns the type of the model, such as "bfloat16", if a `config.json` states it.
    ///
    /// # Errors
    /// If the value is not a text.
    pub(crate) fn model_type(&self) -> Result<Option<&'f str>> {
        match self.optional_str("dtype")? {
            Some(name) => Ok(Some(name)),
            None => self.optional_str("torch_dtype"),
        }
    }

    /// Returns the type of a model's text part, which may have settings of its own (`text_config`).
    ///
    /// # Errors
    /// See [`Config::model_type`].
    pub(crate) fn text_type(&self) -> Result<Option<&'f str>> {
        let own = self.object("text_config")?.map(|text| text.model_type()).transpose()?.flatten();
        Ok(own.or(self.model_type()?))
    }

    /// Returns a boolean, if the key exists.
    ///
    /// # Errors
    /// If the value is not a boolean.
    pub(crate) fn optional_bool(&self, key: &str) -> Result<Option<bool>> {
        self.optional(key, Value::as_bool, "true or false")
    }

    /// Checks that a key, if present, has a supported value.
    ///
    /// # Errors
    /// If it asks for another value.
    pub(crate) fn only(&self, key: &str, supported: &[Value], what: &str) -> Result<()> {
        match self.get(key) {
            Some(value) if !supported.contains(value) => Err(self.bad_key(key, value, what)),
            _ => Ok(()),
        }
    }

    /// Checks that there are no keys other than these.
    ///
    /// # Errors
    /// Names the first unknown key.
    pub(crate) fn only_keys(&self, known: &[&str]) -> Result<()> {
        let keys = self.json.as_object().into_iter().flatten();
        let unknown =
            keys.filter(|(_, value)| !value.is_null()).find(|(key, _)| !known.contains(&key.as_str()));
        unknown.map_or(Ok(()), |(key, value)| {
            Err(self.bad_key(key, value, format!("absent; known keys here: {}", known.join(", "))))
        })
    }

    /// Returns the full path of a key, with the keys of the objects around it.
    pub(crate) fn path_of(&self, key: &str) -> String {
        format!("{}{}", self.prefix, self.stated_key(key))
    }

    /// Creates an error about a key's value.
    pub(crate) fn bad_key(&self, key: &str, found: impl Display, expected: impl Display) -> Error {
        Error::bad_key(self.path, &self.path_of(key), found, expected)
    }

    fn missing(&self, key: &str) -> Error {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let hint = format!("every {name} of this architecture must state this key");
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
