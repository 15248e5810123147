//! Named arrays in any common container: a safetensors file, an `.npz`, a folder of `.npy` files, or a file of
//! `torch.save`.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use super::{FileBytes, Format, NameIndex, Pytorch, Safetensors, TensorFile, npy};
use crate::error::{Error, Result};
use crate::memory;
use crate::weight::StoredTensor;

/// Maximum number of files in a folder; each is mapped, and a process has a limited number of maps.
const MOST_FILES: usize = 20_000;
/// Maximum nesting depth of folders.
const MOST_DEEP: usize = 8;

/// Arrays of a file or folder, known only by their names.
#[derive(Clone, Debug)]
pub struct Arrays {
    /// Named arrays.
    pub tensors: TensorFile,
    /// Names of entries that are not arrays.
    pub others: Vec<String>,
}

impl Arrays {
    /// Reads a file of any supported kind, or a folder.
    ///
    /// # Errors
    /// If it has another kind, is damaged, or claims more data than its size allows.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Self::of(path, in_folder(path)?, Vec::new());
        }
        let source = FileBytes::open(path)?;
        match Format::detect(&source)? {
            Format::Safetensors => {
                Ok(Self { tensors: Safetensors::read(&source)?.tensors, others: Vec::new() })
            }
            Format::Pytorch => {
                let nested = Pytorch::nested(&source)?;
                Self::of(path, nested.arrays, nested.others)
            }
            Format::Npz => Self::of(path, in_npz(&source)?, Vec::new()),
            Format::Npy => {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                Self::of(path, vec![(stem, npy::read(&source, None)?)], Vec::new())
            }
            found @ (Format::Gguf | Format::Llama2c) => Err(Error::dump(
                path,
                format!("it is a model ({}), expected a file of activations", found.name()),
            )),
        }
    }

    /// Creates arrays from named entries.
    ///
    /// # Errors
    /// If two entries have the same name.
    pub fn of(path: &Path, entries: Vec<(String, StoredTensor)>, others: Vec<String>) -> Result<Self> {
        let offsets = vec![0; entries.len()];
        let source = FileBytes::embedded(path, &[]);
        let tensors = NameIndex::new(&source, "array", entries, &offsets)?;
        Ok(Self { tensors: TensorFile { path: path.to_owned(), tensors }, others })
    }

    /// Returns true if a path is a folder that contains `.npy` files, directly or in subfolders.
    pub fn is_folder(path: &Path) -> bool {
        path.is_dir() && files(path).is_ok_and(|files| !files.is_empty())
    }
}

fn in_folder(folder: &Path) -> Result<Vec<(String, StoredTensor)>> {
    let files = files(folder)?;
    let named = |file: PathBuf| {
        let inside = file.strip_prefix(folder).unwrap_or(&file).with_extension("");
        let name = inside.to_string_lossy().replace(std::path::MAIN_SEPARATOR, "/");
        Ok((name, npy::read(&FileBytes::open(&file)?, None)?))
    };
    files.into_iter().map(named).collect()
}

/// Returns the `.npy` files of a folder and its subfolders, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut left) = (Vec::new(), vec![(folder.to_owned(), 0)]);
    let mut seen = 0;
    while let Some((folder, depth)) = left.pop() {
        for entry in fs::read_dir(&folder).map_err(Error::io("list", &folder))? {
            let entry = entry.map_err(Error::io("list", &folder))?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(Error::io("list", &folder))?);
            seen += 1;
            if seen > MOST_FILES {
                let problem = format!("it holds more than {MOST_FILES} files; save one .npz or .safetensors");
                return Err(Error::dump(&folder, problem));
            }
            // A link to a folder may lead back to an outer folder.
            if kind.is_dir() && depth < MOST_DEEP {
                left.push((path, depth + 1));
            } else if path.extension().is_some_and(|extension| extension == "npy") && path.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn in_npz(source: &FileBytes) -> Result<Vec<(String, StoredTensor)>> {
    let refuse = |problem: String| Error::BadContainer { file: source.path.clone(), format: "npz", problem };
    let mut archive = ZipArchive::new(std::io::Cursor::new(source.data.whole()))
        .map_err(|error| refuse(error.to_string()))?;
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
