//! Cache on this machine between runs. It saves work, may be deleted at any time, and affects no result.

mod blocks;
mod content;
mod hashes;
mod space;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use blocks::CachedBlocks;
pub(crate) use content::PinnedContent;
pub use hashes::PinnedFile;
pub(crate) use hashes::hash_of;
pub(crate) use space::BLOCK;

use crate::atomic_write;
use crate::error::{Error, Result};
use space::CacheSpace;

/// Environment variable with the cache folder, or `off`.
const FOLDER: &str = "XCHECK_CACHE";
/// Value of [`FOLDER`] that turns the cache off.
const OFF: &str = "off";
/// Environment variable with the maximum size of cached remote files.
const LIMIT: &str = "XCHECK_CACHE_LIMIT";
/// Default limit in bytes: 20 GB.
const USUAL: u64 = 20_000_000_000;

/// Location and size limit of the cache.
#[derive(Clone, Debug)]
pub struct DiskCache {
    folder: Option<PathBuf>,
    space: Arc<CacheSpace>,
}

impl DiskCache {
    /// Reads the environment: `XCHECK_CACHE`, a folder or `off`, else `xcheck` in the user's cache folder; and
    /// `XCHECK_CACHE_LIMIT`, such as `20GB`.
    ///
    /// # Errors
    /// If the limit is not a valid size.
    pub(crate) fn from_env() -> Result<Self> {
        Self::from_variables(|name| env::var_os(name), env::home_dir())
    }

    /// Reads the given variables and the user's home folder.
    ///
    /// # Errors
    /// If the limit is not a valid size.
    pub(crate) fn from_variables(
        variable: impl Fn(&str) -> Option<OsString>,
        user: Option<PathBuf>,
    ) -> Result<Self> {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let path = |name| set(name).map(PathBuf::from);
        let caches = || path("XDG_CACHE_HOME").or_else(|| Some(user?.join(".cache")));
        let folder = match path(FOLDER) {
            Some(folder) if folder.as_os_str() == OFF => None,
            Some(folder) => Some(folder),
            None => caches().map(|caches| caches.join("xcheck")),
        };
        let limit = set(LIMIT).map_or(Ok(USUAL), |text| {
            let refuse =
                || Error::Usage(format!("{LIMIT} is {text:?}, expected a size such as 20GB or 500MB"));
            text.to_str().and_then(size).ok_or_else(refuse)
        })?;
        Ok(Self::new(folder, limit))
    }

    /// Creates a cache in a folder, with at most `limit` bytes of remote files.
    pub fn in_folder(folder: PathBuf, limit: u64) -> Self {
        Self::new(Some(folder), limit)
    }

    /// Creates a cache that keeps nothing after this run.
    pub fn nothing() -> Self {
        Self::new(None, USUAL)
    }

    /// Returns the cache folder; `None` if the cache is off.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn new(folder: Option<PathBuf>, limit: u64) -> Self {
        let parts = folder.as_ref().map(|folder| folder.join("parts"));
        Self { folder, space: Arc::new(CacheSpace::new(parts, limit)) }
    }
}

/// Writes a file atomically, and creates its parent directories.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write_with_folders(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder)?;
    atomic_write::write_whole(path, bytes)
}

/// Parses a size such as `20GB`, `500 MB` or `123456` (bytes).
pub(crate) fn size(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 4] =
        [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)];
    let text = text.trim().to_uppercase();
    let unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (number, factor) = unit.unwrap_or((text.as_str(), 1));
    let number: f64 =
        number.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)?;
    Some((number * factor as f64) as u64)
}
