//! Models that `llama-gguf-split` divided into several GGUF files: `NAME-00001-of-00003.gguf` and so on. The first part
//! has the model's metadata.

use std::path::Path;

use super::Gguf;
use crate::error::{Error, ModelError, Result};
use crate::format::{FileBytes, FileStore, TensorFile};

/// Metadata key of a part's index, counted from 0.
const INDEX: &str = "split.no";
/// Metadata key of the number of parts.
const COUNT: &str = "split.count";
/// Metadata key of the number of tensors in all parts.
const TENSORS: &str = "split.tensors.count";
/// Number of digits of a part's index and of the number of parts.
const DIGITS: usize = 5;

/// Name of one part of a model: `{stem}-00001-of-00003.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    /// Text before the index. It may contain folders.
    pub stem: String,
    /// Number of parts, 1 or more.
    pub(crate) count: usize,
}

impl PartName {
    /// Parses a file name. `None` if it is not the name of a part.
    pub fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_suffix(".gguf")?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, index) = rest.rsplit_once('-')?;
        let number = |digits: &str| {
            let is_plain = digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit());
            is_plain.then(|| digits.parse().ok()).flatten()
        };
        let (index, count): (usize, usize) = (number(index)?, number(count)?);
        (1..=count).contains(&index).then(|| Self { stem: stem.to_owned(), count })
    }

    /// Returns the name of the part with this index, from 0.
    pub fn of_part(&self, index: usize) -> String {
        let Self { stem, count } = self;
        format!("{stem}-{:0DIGITS$}-of-{count:0DIGITS$}.gguf", index + 1)
    }

    /// Returns the names of all parts.
    pub fn all(&self) -> impl Iterator<Item = String> {
        (0..self.count).map(|index| self.of_part(index))
    }
}

/// Opens all parts of the model that a part belongs to. Returns a file that is not a part alone.
///
/// # Errors
/// If a part is missing or cannot be opened.
pub(crate) fn open(place: &dyn FileStore, part: FileBytes) -> Result<Vec<FileBytes>> {
    let name = part.path.file_name().and_then(|name| name.to_str()).and_then(PartName::parse);
    let Some(name) = name.filter(|name| name.count > 1) else { return Ok(vec![part]) };
    // llama.cpp takes the number of parts from the file, not from its name.
    if Gguf::read(&part)?.part_count()? == 1 {
        return Ok(vec![part]);
    }
    let open = |file: String| {
        let path = part.path.with_file_name(&file);
        place.find(&path)?.ok_or_else(|| missing(place, &part.path, &path))
    };
    name.all().map(open).collect()
}

fn missing(place: &dyn FileStore, model: &Path, part: &Path) -> Error {
    let why = place.why_absent(part).map_or(String::new(), |why| format!(" ({why})"));
    let problem = format!(
        "{} is missing{why}: the model is split into several files; put all of them in one folder",
        part.display()
    );
    ModelError::NoModel { name: model.display().to_string(), problem }.into()
}

impl Gguf {
    /// Reads a model from all its parts, in order.
    ///
    /// # Errors
    /// If a part is damaged or belongs to another model, or parts are missing.
    pub fn read_parts(parts: &[FileBytes]) -> Result<Self> {
        let (first, others) = parts.split_first().expect("a model has at least one file");
        let mut whole = Self::read(first)?;
        whole.check_part(0, parts.len())?;
        if others.is_empty() {
            return Ok(whole);
        }
        let mut entries = whole.tensors.entries();
        for (index, part) in (1..).zip(others) {
            let part = Self::read(part)?;
            part.check_part(index, parts.len())?;
            entries.extend(part.tensors.entries());
        }
        if let Some(stated) = whole.optional::<usize>(TENSORS)?.filter(|stated| *stated != entries.len()) {
            let expected =
                format!("{}, the number of tensors in all parts; get the parts again", entries.len());
            return Err(Error::bad_key(&first.path, TENSORS, stated, expected));
        }
        whole.tensors = TensorFile::joined(first, entries)?;
        Ok(whole)
    }

    /// Returns the number of parts that the file states.
    fn part_count(&self) -> Result<usize> {
        Ok(self.optional::<usize>(COUNT)?.unwrap_or(1).max(1))
    }

    fn check_part(&self, index: usize, count: usize) -> Result<()> {
        let stated = self.part_count()?;
        if stated != count {
            let expected = match count {
                1 => format!(
                    "1: the file is one of {stated} parts; name the parts NAME-00001-of-{stated:0DIGITS$}.gguf and so on"
                ),
                _ => format!("{count}, as the file's name says; get the parts again"),
            };
            return Err(Error::bad_key(self.tensors.path(), COUNT, stated, expected));
        }
        let found = self.optional::<usize>(INDEX)?.unwrap_or(0);
        if count > 1 && found != index {
            let expected = format!("{index}, as the file's name says; get the parts again");
            return Err(Error::bad_key(self.tensors.path(), INDEX, found, expected));
        }
        Ok(())
    }
}
