//! SHA-256 of a model's weights, computed on demand or in parallel to a run.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use sha2::{Digest, Sha256};

use crate::disk_cache::{DiskCache, PinnedContent, PinnedFile};
use crate::error::Result;
use crate::format::FileBytes;
use crate::model::ModelFiles;

/// The SHA-256 of weight files, concatenated in file-name order. It is computed on first use.
#[derive(Clone)]
pub(crate) struct Fingerprint {
    compute: Arc<dyn Fn() -> Result<String> + Send + Sync>,
    found: Arc<Mutex<Option<String>>>,
}

impl Fingerprint {
    /// Makes a fingerprint of files in memory.
    pub(crate) fn of_bytes(files: &ModelFiles) -> Self {
        let files = files.clone();
        Self::new(move || Ok(files.sha256()))
    }

    /// Makes a fingerprint of opened files in their current state.
    ///
    /// # Errors
    /// If a file no longer exists.
    pub(crate) fn of_files(files: &ModelFiles, kept: DiskCache) -> Result<Self> {
        let pinned: Result<Vec<_>> = files.weights().iter().map(|file| PinnedFile::at(&file.path)).collect();
        let pinned = pinned?;
        Ok(Self::new(move || kept.sha256(&pinned)))
    }

    /// Creates the fingerprint of a file, or of a folder, which includes the names of its files.
    pub(crate) fn of_content(content: PinnedContent, kept: DiskCache) -> Self {
        Self::new(move || content.sha256(&kept))
    }

    /// Makes the fingerprint of one file's bytes.
    pub(crate) fn of_source(source: FileBytes) -> Self {
        Self::new(move || Ok(hex::encode(Sha256::digest(source.data.whole()))))
    }

    /// Makes a fingerprint from a known hash.
    pub(crate) fn known(sha256: String) -> Self {
        let compute = Self::new(|| unreachable!("a known hash is never computed"));
        Self { found: Arc::new(Mutex::new(Some(sha256))), ..compute }
    }

    fn new(compute: impl Fn() -> Result<String> + Send + Sync + 'static) -> Self {
        Self { compute: Arc::new(compute), found: Arc::default() }
    }

    /// Starts to compute the hash on its own thread.
    pub(crate) fn begin(&self) {
        let beside = self.clone();
        // Errors are ignored here; the call to `sha256` reports them.
        _ = thread::Builder::new().name("hash".to_owned()).spawn(move || _ = beside.sha256());
    }

    /// Returns the hash in hexadecimal; waits until it is computed.
    ///
    /// # Errors
    /// If a file can no longer be read, or was replaced since it was opened.
    pub(crate) fn sha256(&self) -> Result<String> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_none() {
            *found = Some((self.compute)()?);
        }
        Ok(found.clone().expect("the hash was just computed"))
    }
}
