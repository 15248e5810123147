//! References that are made here.

use std::path::PathBuf;

/// Failure of another program that makes a reference or its environment.
#[derive(Debug, thiserror::Error)]
#[error("{what} failed: {said}; {advice}; the full log is in {}", log.display())]
pub struct ReferenceError {
    /// Task that failed.
    pub what: String,
    /// The program's own words.
    pub said: String,
    /// Remedy.
    pub advice: String,
    /// The file with everything that it said.
    pub log: PathBuf,
}
