//! Models of the hub.

use std::path::PathBuf;

/// Why a model of the hub cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A model of the hub is not, or not whole, on this machine.
    #[error("{model}: no such file or directory, and not in the Hugging Face cache {}: {missing}; get it with: {command}", cache.display())]
    NotCached {
        /// What was asked for.
        model: String,
        /// The cache.
        cache: PathBuf,
        /// Which files are missing.
        missing: String,
        /// What downloads it.
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
        /// What downloads it.
        command: String,
    },
    /// The hub, or the way to it, refused.
    #[error("cannot download {what}: {problem}")]
    Download {
        /// What was to be downloaded.
        what: String,
        /// Why not, and what to do.
        problem: String,
    },
}
