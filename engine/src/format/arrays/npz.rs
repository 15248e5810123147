//! Arrays of an `.npz` archive.

use std::io::{Cursor, Read};

use zip::ZipArchive;

use super::super::{FileBytes, npy};
use crate::error::{Error, Result};
use crate::memory;
use crate::weight::StoredTensor;

/// Reads the `.npy` members of an archive.
pub(super) fn read(source: &FileBytes) -> Result<Vec<(String, StoredTensor)>> {
    let refuse = |problem: String| Error::BadContainer { file: source.path.clone(), format: "npz", problem };
    let mut archive =
        ZipArchive::new(Cursor::new(source.data.whole())).map_err(|error| refuse(error.to_string()))?;
    let mut left = memory::unpacked(source.data.len() as u64);
    let mut arrays = Vec::new();
    for index in 0..archive.len() {
        let member = archive.by_index(index).map_err(|error| refuse(error.to_string()))?;
        let name = member.name().map_err(|error| refuse(error.to_string()))?.into_owned();
        let Some(stem) = name.strip_suffix(".npy").map(str::to_owned) else { continue };
        // The stated size is not trusted: at most the remaining budget is read.
        let mut data = Vec::new();
        let mut limited = member.take(left.saturating_add(1));
        limited.read_to_end(&mut data).map_err(|error| refuse(format!("'{stem}': {error}")))?;
        left = left.checked_sub(data.len() as u64).ok_or_else(|| {
            refuse(
                "its arrays are larger than a valid archive of its size can hold; save them with numpy.savez"
                    .to_owned(),
            )
        })?;
        let path = source.path.join(&name);
        arrays.push((stem, npy::read(&FileBytes { path, data: data.into() }, None)?));
    }
    Ok(arrays)
}
