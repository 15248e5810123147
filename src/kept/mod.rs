//! What is kept on this machine between runs: it saves work, may be lost at any time, and decides nothing.

mod hashes;

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

pub use hashes::{Pinned, hash_of};

/// The folder that names another place, or `off`.
const FOLDER: &str = "XCHECK_CACHE";
/// What [`FOLDER`] says where nothing is to be kept.
const OFF: &str = "off";

/// Where things are kept.
#[derive(Clone, Debug)]
pub struct Kept {
    folder: Option<PathBuf>,
}

impl Kept {
    /// From the environment: `XCHECK_CACHE`, a folder or `off`, else `xcheck` in the user's folder of caches.
    pub fn from_env() -> Self {
        Self::from_variables(|name| env::var_os(name), env::home_dir())
    }

    /// From variables by name, and the user's home.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>, user: Option<PathBuf>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let caches = || set("XDG_CACHE_HOME").or_else(|| Some(user?.join(".cache")));
        let folder = match set(FOLDER) {
            Some(folder) if folder.as_os_str() == OFF => None,
            Some(folder) => Some(folder),
            None => caches().map(|caches| caches.join("xcheck")),
        };
        Self { folder }
    }

    /// In that folder.
    pub fn in_folder(folder: PathBuf) -> Self {
        Self { folder: Some(folder) }
    }

    /// Nowhere.
    pub fn nothing() -> Self {
        Self { folder: None }
    }

    /// The folder, if anything is kept.
    pub fn folder(&self) -> Option<&PathBuf> {
        self.folder.as_ref()
    }
}
