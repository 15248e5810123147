//! Everything that can go wrong: what, where, what was expected, what to do. What one room refuses has an enum of its own.

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

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refusal. Each prints as one message; bad input is never a panic.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bytes of a file elsewhere cannot be had.
    #[error("{0}")]
    Elsewhere(UnavailableBytes),
    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Attempted action: "open", "read", "write" …
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's own words.
        source: std::io::Error,
    },
    /// The request needs more memory than available.
    #[error("{what} needs {}, but only {} are available on this machine or allowed (ulimit -v, container limit); reduce the request, or use a machine with more memory", gigabytes(*needed), gigabytes(*left))]
    NoMemory {
        /// Item that needs the memory.
        what: String,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that there are.
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
    /// The command line asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// A file is not what its format says.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A key of metadata or of a configuration is absent, or cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A model cannot be found, or cannot be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A vocabulary contradicts itself, or lacks a token.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A model of the hub cannot be had.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A server gives no answer, or none that can be read.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A reference cannot be made.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A dump contradicts itself, or another.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// A run cannot go on.
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
