//! Zip archive around the pickle and the storages: finds members by name, as views of the file.

use std::io::Cursor;
use std::ops::Range;

use zip::read::ZipFile;
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use super::super::escape::EscapedText;
use super::FileBytes;
use crate::error::{Error, Result};
use crate::lazy_bytes::LazyBytes;

/// An archive, and the top folder of its members.
pub(super) struct Archive<'s> {
    pub(crate) source: &'s FileBytes,
    zip: ZipArchive<Cursor<&'s [u8]>>,
    /// Top folder, with a trailing slash.
    folder: String,
}

impl<'s> Archive<'s> {
    pub(crate) fn open(source: &'s FileBytes) -> Result<Self> {
        let zip = ZipArchive::new(Cursor::new(&source.data[..])).map_err(|error| refuse(source, error))?;
        match folder(&zip) {
            Some(folder) => Ok(Self { source, zip, folder }),
            None => Err(refuse(source, "no folder of the archive has 'data.pkl'")),
        }
    }

    /// Returns an error for big-endian archives. torch would convert their numbers; this reader does not.
    pub(crate) fn refuse_big_endian(&mut self) -> Result<()> {
        let Some(range) = self.find("byteorder")? else { return Ok(()) };
        match &self.source.data[range.clone()] {
            b"little" => Ok(()),
            other => {
                let found = format_args!("'{}'", EscapedText(&String::from_utf8_lossy(other)));
                let expected = "'little'; load it with torch and save it again on a little-endian machine";
                Err(self.source.bad(range.start, "the member 'byteorder'", found, expected))
            }
        }
    }

    /// Returns a member as a file. Offsets in messages count from the member's start, like those of pickletools.
    pub(crate) fn source_of(&mut self, name: &str) -> Result<FileBytes> {
        let path = format!("{}/{}{name}", self.source.path.display(), EscapedText(&self.folder));
        Ok(FileBytes { path: path.into(), data: self.member(name)? })
    }

    /// Returns the bytes of a member as a view of the file.
    pub(crate) fn member(&mut self, name: &str) -> Result<LazyBytes> {
        let found = self.find(name)?;
        let range = found.ok_or_else(|| self.refuse_member(name, "is missing"))?;
        Ok(self.source.data.slice(range))
    }

    fn find(&mut self, name: &str) -> Result<Option<Range<usize>>> {
        let path = format!("{}{name}", self.folder);
        let place = match self.zip.by_name_raw(path.as_bytes()) {
            Ok(member) => place(&member),
            Err(ZipError::FileNotFound) => return Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let (start, size) = place.map_err(|problem| self.refuse_member(name, problem))?;
        self.range(name, start, size).map(Some)
    }

    fn range(&self, name: &str, start: u64, size: u64) -> Result<Range<usize>> {
        let len = self.source.data.len();
        let bound = |offset: u64| usize::try_from(offset).ok().filter(|&offset| offset <= len);
        match (bound(start), start.checked_add(size).and_then(bound)) {
            (Some(start), Some(end)) => Ok(start..end),
            (start, _) => {
                let what = format_args!("the member '{}'", EscapedText(name));
                Err(self.source.truncated(what, start.unwrap_or(len), size))
            }
        }
    }

    fn refuse_member(&self, name: &str, problem: impl ToString) -> Error {
        let path = format!("{}{name}", self.folder);
        refuse(self.source, format!("the member '{}': {}", EscapedText(&path), problem.to_string()))
    }
}

/// Returns the folder of the first pickle.
fn folder(zip: &ZipArchive<Cursor<&[u8]>>) -> Option<String> {
    let names = zip.file_names_raw().filter_map(|name| str::from_utf8(name).ok());
    let mut folders = names.filter_map(|name| name.strip_suffix("data.pkl"));
    folders.find(|folder| folder.ends_with('/')).map(str::to_owned)
}

/// Returns the offset of a member in the file, and its length.
fn place(member: &ZipFile<Cursor<&[u8]>>) -> Result<(u64, u64), String> {
    let is_plain = member.compression() == CompressionMethod::Stored && !member.encrypted();
    match member.data_start() {
        Some(start) if is_plain && member.size() == member.compressed_size() => Ok((start, member.size())),
        _ => Err(
            "is compressed, expected stored data as torch.save writes it; pack the archive again with zip -0"
                .into(),
        ),
    }
}

fn refuse(source: &FileBytes, problem: impl ToString) -> Error {
    let problem = EscapedText(&problem.to_string()).to_string();
    Error::BadContainer { file: source.path.clone(), format: "PyTorch", problem }
}
