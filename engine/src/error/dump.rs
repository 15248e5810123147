//! Errors about dumps that contradict themselves or each other.

use std::path::{Path, PathBuf};

use super::Error;

/// Error about dumps.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The manifest contradicts the contract, itself or its arrays.
    #[error("{}: {problem}", dump.display())]
    Bad {
        /// The dump.
        dump: PathBuf,
        /// Value found, location, and value expected.
        problem: String,
    },
    /// Two runs read different tokens, although they must read the same.
    #[error(
        "the input tokens differ: nothing else can be compared\n  {one_name}: {one:?}\n  {other_name}: {other:?}\n  first difference at position {position}"
    )]
    TokensDiffer {
        /// Name of the run that read `one`.
        one_name: String,
        /// Tokens of the first run.
        one: Vec<u32>,
        /// Name of the run that read `other`.
        other_name: String,
        /// Tokens of the second run.
        other: Vec<u32>,
        /// First position at which the tokens differ.
        position: usize,
    },
}

impl Error {
    /// Creates an error about a dump.
    pub fn dump(dump: &Path, problem: impl Into<String>) -> Self {
        DumpError::Bad { dump: dump.to_owned(), problem: problem.into() }.into()
    }
}
