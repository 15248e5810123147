//! Hashes of a dump's content. `--resume` reuses results of an earlier run only if the hash is unchanged.

use std::path::{Path, PathBuf};

use crate::cli::fingerprint::Fingerprint;
use crate::disk_cache::{DiskCache, PinnedContent};
use crate::error::{Error, Result};
use crate::format::FileBytes;

#[derive(Clone)]
pub(crate) enum DumpFiles {
    /// One file, with its content when it was opened.
    File(PinnedContent),
    /// A folder whose arrays are opened one by one.
    Folder(PathBuf),
    /// Bytes in memory.
    Bytes(FileBytes),
    /// A remote file, identified by its `ETag` or date and its size.
    Elsewhere {
        /// Version of the file, such as `ETag "33a6"`.
        pin: String,
        /// Size in bytes.
        bytes: usize,
    },
    /// The source is a stream or a server's answers, which have no hash and no version.
    Unknown,
}

impl DumpFiles {
    /// Finds the files of a dump at a path.
    ///
    /// # Errors
    /// If the path cannot be opened.
    pub(crate) fn at(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        PinnedContent::at(path)?.map(Self::File).map_err(|special| no_file(&special))
    }

    /// Starts to hash the content.
    ///
    /// # Errors
    /// If a folder cannot be listed, or contains anything but files and folders.
    pub(crate) fn begin_hash(&self, kept: DiskCache) -> Result<DumpHash> {
        let pinned = match self {
            Self::File(content) => Some(content.clone()),
            Self::Folder(path) => Some(PinnedContent::at(path)?.map_err(|special| no_file(&special))?),
            Self::Bytes(_) | Self::Elsewhere { .. } | Self::Unknown => None,
        };
        let hash = match (self, &pinned) {
            (_, Some(content)) => Fingerprint::of_content(content.clone(), kept),
            (Self::Bytes(source), _) => Fingerprint::of_source(source.clone()),
            (Self::Elsewhere { pin, bytes }, _) => Fingerprint::known(format!("{pin}, {bytes} bytes")),
            _ => Fingerprint::known("unknown".to_owned()),
        };
        hash.begin();
        Ok(DumpHash { hash, pinned, is_certain: self.is_certain() })
    }

    /// Returns true if every change of the content changes the hash. A date or a weak `ETag` may stay the same although
    /// the content changes.
    fn is_certain(&self) -> bool {
        match self {
            Self::File(_) | Self::Folder(_) | Self::Bytes(_) => true,
            Self::Elsewhere { pin, .. } => pin.starts_with("ETag \""),
            Self::Unknown => false,
        }
    }
}

/// Hash of a dump's files, computed while the dump is judged.
pub(crate) struct DumpHash {
    hash: Fingerprint,
    pinned: Option<PinnedContent>,
    /// True if every change of the content changes the hash.
    pub(crate) is_certain: bool,
}

impl DumpHash {
    /// Returns the hash of the content; waits until it is computed.
    ///
    /// # Errors
    /// If a file cannot be read, or has changed since it was opened.
    pub fn told(&self) -> Result<String> {
        self.hash.sha256()
    }

    /// Checks that no file has changed since it was opened.
    ///
    /// # Errors
    /// If a file has changed, because then the results are from two different dumps.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.pinned.as_ref().map_or(Ok(()), PinnedContent::check_unchanged)
    }
}

fn no_file(special: &Path) -> Error {
    Error::Usage(format!("{}: expected a file or folder", special.display()))
}
