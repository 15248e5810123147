//! The Hugging Face hub: known public models, the local cache, and downloads.
//!
//! The cache is shared with `huggingface_hub` and `transformers`: files that they downloaded are used, and
//! they find the files downloaded here. A cached file is named by the hash of its content and verified before
//! it is used.

mod cache;
#[cfg(feature = "hub")]
mod client;
mod digest;
#[cfg(feature = "hub")]
mod download;
mod file_selection;
mod known_models;
mod name;
mod settings;

pub(crate) use cache::{CacheState, VerifiedModel};
pub(crate) use known_models::KnownFiles;
pub use known_models::{KnownModel, named, nearest};
pub use name::{HubModel, RepoFiles};
pub use settings::HubSettings;

use crate::error::{Error, HubError, Result};

/// Receives the progress of a download.
pub(crate) trait DownloadObserver {
    /// Reports the start of a file of `bytes` bytes, of which `start` are already downloaded.
    fn file(&mut self, name: &str, bytes: u64, start: u64);
    /// Reports the number of downloaded bytes.
    fn reached(&mut self, bytes: u64);
}

/// Finds a model whose files are all in the cache, and verifies them.
///
/// # Errors
/// [`HubError::NotCached`] if a file is missing, [`HubError::Damaged`] if a file does not match its hash.
pub(crate) fn locate(settings: &HubSettings, model: &HubModel) -> Result<VerifiedModel> {
    match CacheState::look_for(settings, model) {
        CacheState::Whole(found) => found.checked(&settings.kept),
        CacheState::Partly(missing) => {
            Err(not_cached(settings, model, &format!("missing {}", missing.join(", "))))
        }
        CacheState::Not => Err(not_cached(settings, model, "none of its files are there")),
    }
}

fn not_cached(settings: &HubSettings, model: &HubModel, missing: &str) -> Error {
    Error::Hub(HubError::NotCached {
        model: model.to_string(),
        cache: settings.cache.clone(),
        missing: missing.to_owned(),
        command: model.download_command(),
    })
}

/// Downloads the missing files of a model's newest version, and finds it in the cache.
///
/// # Errors
/// If the hub cannot be reached or refuses, a file does not match its hash, or the disk is full. Downloaded
/// bytes are kept, and the next attempt continues from them.
pub(crate) fn download(
    settings: &HubSettings,
    model: &HubModel,
    watch: &mut dyn DownloadObserver,
) -> Result<VerifiedModel> {
    if settings.offline {
        return Err(Error::Hub(HubError::Download {
            what: model.to_string(),
            problem: "HF_HUB_OFFLINE is set; unset it, or use a model from the cache".into(),
        }));
    }
    fetch(settings, model, watch)
}

#[cfg(feature = "hub")]
fn fetch(
    settings: &HubSettings,
    model: &HubModel,
    watch: &mut dyn DownloadObserver,
) -> Result<VerifiedModel> {
    download::fetch(settings, model, watch)?;
    locate(settings, model)
}

#[cfg(not(feature = "hub"))]
fn fetch(_: &HubSettings, model: &HubModel, _: &mut dyn DownloadObserver) -> Result<VerifiedModel> {
    Err(Error::Hub(HubError::Download {
        what: model.to_string(),
        problem: "this xcheck was built without the feature 'hub'; download it with: hf download".into(),
    }))
}
