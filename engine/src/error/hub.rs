//! Models of the hub.

use std::path::PathBuf;

/// Error about a model of the hub.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A model of the hub is not, or not whole, on this machine.
    #[error("{model}: no such file or directory, and not in the Hugging Face cache {}: {missing}; get it with: {command}", cache.display())]
    NotCached {
        /// Requested model.
        model: String,
        /// The cache.
        cache: PathBuf,
        /// Missing files.
        missing: String,
        /// Command that downloads it.
        command: String,
    },
    /// A file of the cache is not what it was when it was downloaded.
    #[error("{}: the content's hash is {found}, expected {expected}; the file is damaged, get it again with: {command}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The hash of what it holds.
        found: String,
        /// The hash that names it.
        expected: String,
        /// Command that downloads it.
        command: String,
    },
    /// The hub, or the way to it, refused.
    #[error("cannot download {what}: {problem}")]
    Download {
        /// Requested download.
        what: String,
        /// Reason and remedy.
        problem: String,
    },
}
