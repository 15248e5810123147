//! Reads `.npz` archives.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{Cursor, Read};

use bytes::Bytes;
use zip::ZipArchive;

use crate::memory;

/// Maximum size in bytes of an `.npy` header.
const HEADER: u64 = 64 * 1024;

/// An opened archive. Its list of members was read.
#[derive(Clone, Debug)]
pub(super) struct Npz {
    archive: ZipArchive<Cursor<Bytes>>,
    len: u64,
}

impl Npz {
    pub(super) fn open(bytes: Bytes) -> Result<Self, String> {
        let len = bytes.len() as u64;
        let archive =
            ZipArchive::new(Cursor::new(bytes)).map_err(|error| format!("not a valid npz file: {error}"))?;
        Ok(Self { archive, len })
    }

    pub(super) fn member_names(&self) -> Result<HashSet<String>, String> {
        let names = self.archive.file_names().map(|name| name.map(Cow::into_owned));
        names.collect::<Result<_, _>>().map_err(|error| format!("not a valid npz file: {error}"))
    }

    /// Reads the manifest. Its size is limited in proportion to the archive, since parsed JSON needs many
    /// times the memory.
    pub(super) fn read_manifest(&self, name: &str) -> Result<Vec<u8>, String> {
        /// Largest accepted compression ratio of a manifest.
        const MOST_SHRUNK: u64 = 64;
        self.read_member(
            name,
            self.len.saturating_mul(MOST_SHRUNK),
            "a manifest in an archive of this size \
            can be",
        )
    }

    /// Reads the bytes of an array: at most `elements` bytes and a header. The size is also limited by the
    /// archive's length, since the manifest inside the archive could be wrong.
    pub(super) fn read_array(&self, name: &str, elements: u64) -> Result<Vec<u8>, String> {
        let most = memory::unpacked(self.len);
        match elements > most {
            true => Err(format!(
                "'{name}' is larger than a valid archive of its size can hold; save it with \
                numpy.savez"
            )),
            false => self.read_member(name, elements, "the manifest states"),
        }
    }

    fn read_member(&self, name: &str, most: u64, who: &str) -> Result<Vec<u8>, String> {
        // A clone shares the list of members and has its own read position.
        let mut archive = self.archive.clone();
        let member = archive.by_name(name).map_err(|error| format!("'{name}': {error}"))?;
        let limit = most.saturating_add(HEADER);
        let mut bytes = Vec::new();
        let mut limited = member.take(limit.saturating_add(1));
        limited.read_to_end(&mut bytes).map_err(|error| format!("'{name}': {error}"))?;
        if bytes.len() as u64 > limit {
            return Err(format!("'{name}' is larger than {who}"));
        }
        Ok(bytes)
    }
}
