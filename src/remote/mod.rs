//! Files behind a URL: weights and dumps are read by HTTP ranges, from any server or bucket, and only where
//! needed.
//!
//! A file is pinned by its `ETag` or its date when it is opened. If the file has changed later, the run ends.
//! Downloaded blocks are cached under that version, with checksums, and are not downloaded again. Messages and
//! reports never show a URL's query or user info, which may be a signature or a password.

#[cfg(feature = "cloud")]
mod cloud;
#[cfg(feature = "hub")]
mod file;
#[cfg(feature = "hub")]
mod http;
#[cfg(feature = "hub")]
mod transport;
mod url;

use std::path::Path;
#[cfg(feature = "hub")]
use std::sync::Arc;

pub use url::{Url, redacted};

use crate::disk_cache::DiskCache;
use crate::error::{Error, Result};
use crate::format::{FileBytes, FileStore};
use crate::lazy_bytes::{LazyBytes, UnavailableBytes};

/// Cache and token for remote files.
#[derive(Clone, Debug)]
pub struct RemoteAccess {
    /// Cache for downloaded data.
    pub kept: DiskCache,
    /// Host that requires a token, and the token.
    pub token: Option<(String, String)>,
}

/// The folder of a URL. Its other files are requested with the URL's query and user info.
pub struct RemoteFolder {
    base: Url,
    #[cfg(feature = "hub")]
    transport: Arc<dyn transport::Transport>,
    #[cfg(feature = "hub")]
    kept: DiskCache,
}

/// File extensions of URLs that name a file. Any other URL names a folder.
const FILES: [&str; 6] = ["gguf", "safetensors", "bin", "json", "npz", "npy"];

impl RemoteFolder {
    /// Makes the folder of a URL without sending a request.
    ///
    /// # Errors
    /// If this build has no network code, or the environment lacks settings for the bucket.
    pub fn new(base: &Url, access: &RemoteAccess) -> Result<Self> {
        #[cfg(feature = "hub")]
        return Ok(Self {
            base: base.clone(),
            transport: transport(base, access)?,
            kept: access.kept.clone(),
        });
        #[cfg(not(feature = "hub"))]
        {
            _ = access;
            Err(refused(
                base,
                "this xcheck was built without the feature 'hub'; download the file and give its path",
            ))
        }
    }

    /// Opens the file at the URL itself.
    ///
    /// # Errors
    /// If the file does not exist, access is denied, or the server does not support it.
    pub fn open(&self) -> Result<FileBytes> {
        self.require(Path::new(self.base.shown()))
    }

    #[cfg(feature = "hub")]
    fn get(&self, path: &Path) -> Result<FileLookup> {
        file::open(&self.transport, &self.kept, &self.base.at(path))
    }

    #[cfg(not(feature = "hub"))]
    fn get(&self, path: &Path) -> Result<FileLookup> {
        Err(refused(&self.base.at(path), "this xcheck was built without network code"))
    }
}

/// Returns the transport for the files of a URL.
#[cfg(feature = "hub")]
fn transport(base: &Url, access: &RemoteAccess) -> Result<Arc<dyn transport::Transport>> {
    #[cfg(feature = "cloud")]
    if base.is_of_a_cloud() {
        return Ok(Arc::new(cloud::CloudBucket::new(base)?));
    }
    if base.is_of_a_cloud() {
        return Err(refused(base, url::NO_CLOUD));
    }
    Ok(Arc::new(http::HttpTransport::new(access.token.clone())))
}

/// A file, or the server's message if it does not exist or access is denied.
type FileLookup = std::result::Result<LazyBytes, String>;

/// Paths are URLs without user info and query.
impl FileStore for RemoteFolder {
    fn is_folder(&self, path: &Path) -> bool {
        let extension = path.extension().and_then(|extension| extension.to_str());
        !extension.is_some_and(|extension| FILES.contains(&extension))
    }

    /// Finds a file of the folder. Some buckets report a missing file as forbidden.
    fn find(&self, path: &Path) -> Result<Option<FileBytes>> {
        Ok(self.get(path)?.ok().map(|data| FileBytes { path: path.to_owned(), data }))
    }

    fn why_absent(&self, path: &Path) -> Option<String> {
        self.get(path).ok()?.err()
    }

    fn require(&self, path: &Path) -> Result<FileBytes> {
        let data = self.get(path)?.map_err(|why| refused(&self.base.at(path), &why))?;
        Ok(FileBytes { path: path.to_owned(), data })
    }
}

fn refused(url: &Url, problem: &str) -> Error {
    Error::Elsewhere(UnavailableBytes { place: url.shown().to_owned(), problem: problem.to_owned() })
}
