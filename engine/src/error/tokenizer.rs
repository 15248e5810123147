//! Errors about tokenizers, and about tokens outside the vocabulary.

use std::path::{Path, PathBuf};

use super::Error;

/// Error about a tokenizer or a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A vocabulary contradicts itself.
    #[error("{}the tokenizer cannot be used: {problem}", file.as_ref().map_or(String::new(), |file| format!("{}: ", file.display())))]
    Unusable {
        /// Tokenizer file, if known.
        file: Option<PathBuf>,
        /// Value found, location, and value expected.
        problem: String,
    },
    /// A token id is outside the vocabulary.
    #[error("token id {id} at position {position} is outside the vocabulary of {vocab_size}")]
    BadToken {
        /// The id.
        id: u32,
        /// Position in the input.
        position: usize,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
}

impl Error {
    /// Adds the tokenizer's file to an error that does not name one.
    pub(crate) fn of_tokenizer(self, path: &Path) -> Self {
        match self {
            Error::Tokenizer(TokenizerError::Unusable { file: None, problem }) => {
                TokenizerError::Unusable { file: Some(path.to_owned()), problem }.into()
            }
            other => other,
        }
    }
}
