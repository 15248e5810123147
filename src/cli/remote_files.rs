//! Files behind URLs in commands.

use std::path::Path;

use crate::dump::MANIFEST;
use crate::error::{Error, HubError, Result};
use crate::format::{FileBytes, FileStore};
use crate::hub::HubSettings;
use crate::lazy_bytes::UnavailableBytes;
use crate::remote::{self, RemoteFolder, Url};

/// Opens a file behind a URL, with the hub's token for URLs of the hub.
pub(crate) fn remote(url: &Url) -> Result<RemoteFolder> {
    let hub = HubSettings::from_env()?;
    if hub.offline {
        let problem = "HF_HUB_OFFLINE is set, which forbids downloads; unset it, or download the file and \
            use its path"
            .into();
        return Err(HubError::Download { what: url.shown().to_owned(), problem }.into());
    }
    let host = format!("{}/", hub.endpoint);
    let token = match url.shown().starts_with(&host) {
        true => hub.sendable_token()?.map(|token| (host, token.to_owned())),
        false => None,
    };
    RemoteFolder::new(url, &remote::RemoteAccess { kept: hub.kept, token })
}

/// Opens the single file of a dump behind a URL.
///
/// # Errors
/// If the file cannot be read, or the dump is a folder of files.
pub(crate) fn dump_behind(url: &Url) -> Result<FileBytes> {
    let place = remote(url)?;
    refuse_loose_arrays(&place, url)?;
    place.open()
}

/// Rejects a dump folder behind a URL, because each array would need its own request, and nothing shows that the
/// files belong together.
///
/// # Errors
/// If the URL leads to a dump folder.
pub(crate) fn refuse_loose_arrays(place: &RemoteFolder, url: &Url) -> Result<()> {
    let path = Path::new(url.shown());
    let is_loose =
        url.name() == MANIFEST || place.is_folder(path) && place.find(&path.join(MANIFEST))?.is_some();
    if !is_loose {
        return Ok(());
    }
    let problem = "a dump in a folder cannot be read from a URL; pack it into one .safetensors file with \
                   reference-scripts/dump/pack_dump.py";
    Err(Error::Elsewhere(UnavailableBytes { place: url.shown().to_owned(), problem: problem.into() }))
}
