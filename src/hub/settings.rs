//! Settings for the cache, the hub's address and the token, from the environment variables of
//! `huggingface_hub`. No other module reads these variables.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::disk_cache::DiskCache;
use crate::error::{Error, Result};

/// Default address of the hub; `HF_ENDPOINT` overrides it.
const ENDPOINT: &str = "https://huggingface.co";

/// Settings for the hub and its cache.
pub struct HubSettings {
    /// Directory with one subfolder per repository.
    pub cache: PathBuf,
    /// Address of the hub, without a trailing slash.
    pub endpoint: String,
    /// Access token; without one only public repositories can be read.
    pub token: Option<String>,
    /// True if the network must not be used.
    pub offline: bool,
    /// Cache of file hashes.
    pub(crate) kept: DiskCache,
}

impl HubSettings {
    /// Reads the settings from the environment.
    ///
    /// # Errors
    /// If a variable of xcheck has an invalid value.
    pub(crate) fn from_env() -> Result<Self> {
        Self::from_variables(|name| env::var_os(name), env::home_dir())
    }

    /// Reads the settings from the given variables and the user's home folder.
    ///
    /// # Errors
    /// If a variable of xcheck has an invalid value.
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<OsString>,
        user: Option<PathBuf>,
    ) -> Result<Self> {
        let set =
            |names: &[&str]| names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
        let text = |names: &[&str]| set(names).and_then(|value| value.into_string().ok());
        let path = |names: &[&str]| set(names).map(PathBuf::from);
        let caches =
            || path(&["XDG_CACHE_HOME"]).unwrap_or_else(|| user.clone().unwrap_or_default().join(".cache"));
        let kept = DiskCache::from_variables(&variable, user.clone())?;
        let home = path(&["HF_HOME"]).unwrap_or_else(|| caches().join("huggingface"));
        let token_file = path(&["HF_TOKEN_PATH"]).unwrap_or_else(|| home.join("token"));
        let endpoint = text(&["HF_ENDPOINT"]).unwrap_or_else(|| ENDPOINT.to_owned());
        Ok(Self {
            cache: path(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]).unwrap_or_else(|| home.join("hub")),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token(set(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]), &token_file),
            kept,
            offline: text(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]).is_some_and(|value| is_true(&value)),
        })
    }

    /// Returns the token if it is valid in an HTTP header.
    ///
    /// # Errors
    /// If the token is invalid. The message does not show it.
    pub(crate) fn sendable_token(&self) -> Result<Option<&str>> {
        match self.token.as_deref() {
            Some(token) if !token.chars().all(|c| c.is_ascii_graphic()) => Err(Error::Usage(
                "the token in HF_TOKEN, or in the file that `hf auth login` wrote, has a space or an invalid character; \
                 copy it again from the hub's token page (hf_...)"
                    .to_owned(),
            )),
            token => Ok(token),
        }
    }
}

fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
}

/// Returns the token from the environment, or from the file of `hf auth login`.
fn token(said: Option<OsString>, file: &Path) -> Option<String> {
    let said = said.and_then(|said| plain(said.to_string_lossy().into_owned()));
    let left = || {
        let regular = fs::metadata(file).is_ok_and(|metadata| metadata.is_file());
        let left = regular.then(|| fs::read(file).ok()).flatten()?;
        plain(String::from_utf8_lossy(&left).into_owned())
    };
    said.or_else(left)
}

/// Returns a token without whitespace at its ends; `None` if it is empty.
fn plain(token: String) -> Option<String> {
    let token: String = token.trim().to_owned();
    (!token.is_empty()).then_some(token)
}
