//! The Hugging Face hub: known public models, the cache on this machine, and downloads into it.
//!
//! The cache is the one that `huggingface_hub` and `transformers` share; what is there already is used, and what is
//! downloaded here is found by them. A file is named there by the hash of its content, and is checked against it
//! before it is used: a damaged one is never loaded as good.

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

pub use cache::{CacheState, CachedFiles, VerifiedModel};
pub use known_models::{KnownFiles, KnownModel, named, nearest};
pub use name::{HubModel, RepoFiles};
pub use settings::HubSettings;

use crate::error::{Error, HubError, Result};

/// Receives the progress of a download.
pub trait DownloadObserver {
    /// A file of `bytes` is on its way, and `start` of them are here already.
    fn file(&mut self, name: &str, bytes: u64, start: u64);
    /// Reports the number of downloaded bytes.
    fn reached(&mut self, bytes: u64);
}

/// A model that is whole in the cache, its files checked byte for byte.
///
/// # Errors
/// [`HubError::NotCached`] if it is not there or not whole, [`HubError::Damaged`] if its content is not what it should be.
pub fn locate(settings: &HubSettings, model: &HubModel) -> Result<VerifiedModel> {
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

/// Gets what the cache lacks of a model's newest version, and locates it there.
///
/// # Errors
/// If the hub cannot be reached or refuses, if a file is not what the hub says it is, or if the disk is full. What
/// has come is kept, and the next attempt goes on from there.
pub fn download(
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
