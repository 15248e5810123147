//! Errors about references created by xcheck.

use std::path::PathBuf;

/// Failure of another program that creates a reference or its environment.
#[derive(Debug, thiserror::Error)]
#[error("{what} failed: {said}; {advice}; the full log is in {}", log.display())]
pub struct ReferenceError {
    /// Task that failed.
    pub what: String,
    /// Message of the program.
    pub said: String,
    /// Remedy.
    pub advice: String,
    /// File with the program's whole output.
    pub log: PathBuf,
}
