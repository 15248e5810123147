//! Errors about keys of metadata and configurations.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::Error;

/// Error about a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A metadata or configuration key is absent.
    #[error("{}: '{key}' is missing; {hint}", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// Purpose of the key.
        hint: String,
    },
    /// A metadata or configuration key has an invalid value.
    #[error("{}: '{key}' is {found}, expected {expected}", file.display())]
    Bad {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// Value found.
        found: String,
        /// Allowed values.
        expected: String,
    },
}

impl Error {
    /// Creates an error about a metadata or configuration value.
    pub fn bad_key(file: &Path, key: &str, found: impl Display, expected: impl Display) -> Self {
        let (found, expected) = (found.to_string(), expected.to_string());
        KeyError::Bad { file: file.to_owned(), key: key.to_owned(), found, expected }.into()
    }
}
