//! Errors about models of the Hugging Face hub.

use std::path::PathBuf;

/// Error about a hub model.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A hub model is missing or incomplete in the local cache.
    #[error("{model}: no such file or directory, and not in the Hugging Face cache {}: {missing}; get it with: {command}", cache.display())]
    NotCached {
        /// Requested model.
        model: String,
        /// Cache directory.
        cache: PathBuf,
        /// Missing files.
        missing: String,
        /// Command that downloads the model.
        command: String,
    },
    /// A cached file has changed since its download.
    #[error("{}: the content's hash is {found}, expected {expected}; the file is damaged, get it again with: {command}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Hash of the file's content.
        found: String,
        /// Expected hash, which is the file's name.
        expected: String,
        /// Command that downloads it.
        command: String,
    },
    /// A download from the hub failed.
    #[error("cannot download {what}: {problem}")]
    Download {
        /// Requested download.
        what: String,
        /// Reason and remedy.
        problem: String,
    },
}
