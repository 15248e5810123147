//! Where the cache and the hub are, and who asks: from the variables that `huggingface_hub` reads, and only here.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::kept::Kept;

/// Where the hub is unless `HF_ENDPOINT` says otherwise.
const ENDPOINT: &str = "https://huggingface.co";

/// How the hub and its cache are used.
pub struct Settings {
    /// The folder with one folder per repository.
    pub cache: PathBuf,
    /// The hub's address, without a slash at its end.
    pub endpoint: String,
    /// Who asks; without one, only what is public is given.
    pub token: Option<String>,
    /// Whether the network is left alone.
    pub offline: bool,
    /// Where hashes of files are remembered.
    pub kept: Kept,
}

impl Settings {
    /// From the environment.
    ///
    /// # Errors
    /// If a variable of ours is not what it should be.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| env::var_os(name), env::home_dir())
    }

    /// From variables by name, and the user's home.
    ///
    /// # Errors
    /// If a variable of ours is not what it should be.
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
        let kept = Kept::from_variables(&variable, user.clone())?;
        let home = path(&["HF_HOME"]).unwrap_or_else(|| caches().join("huggingface"));
        let token_file = path(&["HF_TOKEN_PATH"]).unwrap_or_else(|| home.join("token"));
        let endpoint = text(&["HF_ENDPOINT"]).unwrap_or_else(|| ENDPOINT.to_owned());
        Ok(Self {
            cache: path(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]).unwrap_or_else(|| home.join("hub")),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: text(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
                .and_then(plain)
                .or_else(|| read(&token_file)),
            kept,
            offline: text(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]).is_some_and(|value| is_true(&value)),
        })
    }
}

fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
}

/// The token that `hf auth login` left.
fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().and_then(plain)
}

/// A token without the line ends that come with copying.
fn plain(token: String) -> Option<String> {
    let token: String = token.trim().to_owned();
    (!token.is_empty()).then_some(token)
}
