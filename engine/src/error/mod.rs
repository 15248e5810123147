//! Errors of this crate. Each says what is wrong and where, what was expected, and what to do. Each area has its own
//! enum.

mod dump;
mod format;
mod hub;
mod keys;
mod model;
mod reference;
mod run;
mod server;
mod tokenizer;

use std::path::{Path, PathBuf};

use crate::lazy_bytes::UnavailableBytes;

pub use dump::DumpError;
pub use format::FormatError;
pub use hub::HubError;
pub use keys::KeyError;
pub use model::ModelError;
pub use reference::ReferenceError;
pub use run::RunError;
pub use server::ServerError;
pub use tokenizer::TokenizerError;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of this crate, printed as one message. Bad input causes an error and never a panic.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bytes of a remote file cannot be downloaded.
    #[error("{0}")]
    Elsewhere(UnavailableBytes),
    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Attempted action: "open", "read", "write" …
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Message of the operating system.
        source: std::io::Error,
    },
    /// The request needs more memory than available.
    #[error("{what} needs {}, but only {} are available on this machine or allowed (ulimit -v, container limit); reduce the request, or use a machine with more memory", gigabytes(*needed), gigabytes(*left))]
    NoMemory {
        /// Item that needs the memory.
        what: String,
        /// Needed bytes.
        needed: u64,
        /// Available bytes.
        left: u64,
    },
    /// A container library refused the file.
    #[error("{}: not a valid {format} file: {problem}", file.display())]
    BadContainer {
        /// The file.
        file: PathBuf,
        /// "safetensors", "npz", …
        format: &'static str,
        /// Message of the library.
        problem: String,
    },
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// A file violates its format.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A key of metadata or of a configuration is missing or invalid.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A model cannot be found or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A vocabulary contradicts itself, or a token is outside of it.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A hub model is not available.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A server gives no answer, or an unreadable one.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A reference cannot be created.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A dump contradicts itself or another dump.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// A run cannot continue.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Error {
    /// Wraps a system error; use as `.map_err(Error::io("open", path))`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB of memory", bytes as f64 / 1e9)
}
