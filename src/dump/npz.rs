//! Members of an `.npz` archive.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{Cursor, Read};

use bytes::Bytes;
use zip::ZipArchive;

/// The most a header of an `.npy` member adds to its elements.
const HEADER: u64 = 64 * 1024;

/// Names of all members.
pub(super) fn member_names(archive: &Bytes) -> Result<HashSet<String>, String> {
    let archive = open(archive)?;
    let names = archive.file_names().map(|name| name.map(Cow::into_owned));
    names.collect::<Result<_, _>>().map_err(|error| format!("not a valid npz file: {error}"))
}

/// The bytes of one member: at most `elements` bytes and a header, so that a small archive cannot fill the
/// memory.
pub(super) fn read_member(archive: &Bytes, name: &str, elements: u64) -> Result<Vec<u8>, String> {
    let mut archive = open(archive)?;
    let member = archive.by_name(name).map_err(|error| format!("'{name}': {error}"))?;
    let limit = elements.saturating_add(HEADER);
    let mut bytes = Vec::new();
    member.take(limit + 1).read_to_end(&mut bytes).map_err(|error| format!("'{name}': {error}"))?;
    if bytes.len() as u64 > limit {
        return Err(format!("'{name}' is larger than the manifest says"));
    }
    Ok(bytes)
}

fn open(archive: &Bytes) -> Result<ZipArchive<Cursor<&[u8]>>, String> {
    ZipArchive::new(Cursor::new(&archive[..])).map_err(|error| format!("not a valid npz file: {error}"))
}
