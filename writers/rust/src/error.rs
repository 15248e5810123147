//! Why a dump was not written.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Why a dump was not written.
#[derive(Debug)]
pub enum Error {
    /// What was given cannot be right: what, where, what was expected.
    Refused(String),
    /// A file could not be made or written.
    Io {
        /// What was done: create, write, rename.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// What writing a dump returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(problem) => f.write_str(problem),
            Self::Io { what, path, source } => write!(f, "cannot {what} {}: {source}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(_) => None,
            Self::Io { source, .. } => Some(source),
        }
    }
}

/// A refusal.
pub(crate) fn refuse<T>(problem: impl Into<String>) -> Result<T> {
    Err(Error::Refused(problem.into()))
}
