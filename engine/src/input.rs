//! Reading of whole files: regular files that fit in memory.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::error::{Error, Result};
use crate::memory;

/// Maximum memory for parsing a text, in multiples of its length.
const TIMES: u128 = 8;

/// Remedy for a path that is not a regular file.
const NOT_REGULAR: &str = "not a regular file: a pipe or a device may never end; write it to a file first";

/// Returns the metadata of a regular file. Opening a pipe would wait for its writer, and a device may never end.
///
/// # Errors
/// If the file does not exist, or is a folder, a pipe or a device.
pub fn regular(path: &Path) -> Result<Metadata> {
    let open = || Error::io("open", path);
    let metadata = fs::metadata(path).map_err(open())?;
    match metadata.is_file() {
        true => Ok(metadata),
        false if metadata.is_dir() => Err(open()(ErrorKind::IsADirectory.into())),
        false => Err(open()(io::Error::new(ErrorKind::InvalidInput, NOT_REGULAR))),
    }
}

/// Returns the bytes of a file.
///
/// # Errors
/// If it is not a regular file, cannot be read, or does not fit in memory.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    let len = regular(path)?.len();
    memory::check(path.display(), TIMES * u128::from(len))?;
    fs::read(path).map_err(Error::io("read", path))
}

/// Returns the text of a file.
///
/// # Errors
/// See [`bytes()`]; also if the file is not UTF-8.
pub fn text(path: &Path) -> Result<String> {
    let no_text = |_| Error::io("read", path)(io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"));
    String::from_utf8(bytes(path)?).map_err(no_text)
}
