//! The file that defines a matrix. Errors name the line.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Spanned, Value};

use crate::error::{Error, Result};
use crate::input;

/// The fields of a matrix definition file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatrixDefinition {
    pub(crate) axes: Spanned<BTreeMap<Spanned<String>, Spanned<Value>>>,
    pub(crate) rows: Option<Spanned<Vec<Spanned<String>>>>,
    pub(crate) columns: Option<Spanned<Vec<Spanned<String>>>>,
    pub(crate) command: Spanned<Vec<Spanned<String>>>,
    pub(crate) make: Option<Spanned<Value>>,
    #[serde(default)]
    pub(crate) reads: Vec<Spanned<String>>,
    pub(crate) limit: Option<Spanned<u64>>,
    #[serde(default)]
    pub(crate) include: Vec<Spanned<CellPattern>>,
    #[serde(default)]
    pub(crate) exclude: Vec<Spanned<CellPattern>>,
    #[serde(default)]
    pub(crate) expect: Vec<Spanned<ExpectationDefinition>>,
}

/// Axis values that select cells: one value or a list for each axis.
pub(crate) type CellPattern = BTreeMap<Spanned<String>, Spanned<Value>>;

/// Expected result of some cells.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpectationDefinition {
    #[serde(rename = "where")]
    pub(crate) of: Spanned<CellPattern>,
    pub(crate) verdict: Spanned<String>,
    pub(crate) tap: Option<Spanned<String>>,
    pub(crate) reason: Spanned<String>,
}

/// A matrix definition file and its text, for error messages with line numbers.
#[derive(Clone, Debug)]
pub(crate) struct DefinitionText {
    file: PathBuf,
    text: String,
}

impl DefinitionText {
    /// Reads a definition file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn of(file: &Path) -> Result<Self> {
        let text = input::text(file)?;
        Ok(Self { file: file.to_owned(), text })
    }

    /// Parses the file.
    ///
    /// # Errors
    /// If the file is not TOML, has an unknown field, or lacks a field.
    pub(crate) fn written(&self) -> Result<MatrixDefinition> {
        toml::from_str(&self.text)
            .map_err(|error| self.refuse(error.span().unwrap_or(0..0), error.message().trim_end()))
    }

    /// Returns an error about the text at `span`, with its line.
    pub(crate) fn refuse(&self, span: Range<usize>, problem: impl AsRef<str>) -> Error {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Error::Usage(format!("{}, line {line}: {}", self.file.display(), problem.as_ref().replace('\n', " ")))
    }
}

/// Reads one or several values as text.
///
/// # Errors
/// If a value has another type, or cannot be part of a command; the error is a message.
pub(crate) fn texts(value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(values) => values.iter().map(text).collect(),
        value => Ok(vec![text(value)?]),
    }
}

fn text(value: &Value) -> Result<String, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        other => return Err(format!("a value is {other}, expected a string or an integer")),
    };
    match text {
        text if text.is_empty() => Err("a value is empty, expected a string".to_owned()),
        text if text.contains(char::is_control) => {
            Err(format!("the value {text:?} has a control character, expected plain text"))
        }
        text => Ok(text),
    }
}
