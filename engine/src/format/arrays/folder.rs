//! Arrays of a folder with one file per module. The file names are the names of the arrays.

use std::fs;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

use super::super::FileBytes;
use super::{NamedEntries, entries};
use crate::error::{Error, Result};

/// Maximum number of files in a folder. Each file is mapped into memory, and a process has a limited number of
/// mappings.
const MOST_FILES: usize = 20_000;
/// Maximum nesting depth of folders.
const MOST_DEEP: usize = 8;
/// Extensions of files with arrays.
const ARRAYS: &[&str] = &["npy", "npz", "pt", "pth", "safetensors", "pb"];
/// Extensions of files that may contain activations but cannot be read from a folder.
const UNREAD: &[&str] = &["bin", "h5", "hdf5", "pkl", "pickle", "raw", "ckpt", "gguf"];
/// Keys that do not name a module. If a file's only array has such a key, the file name is used as the name.
const GENERIC_KEYS: &[&str] = &[
    "",
    "data",
    "tensor",
    "output",
    "out",
    "value",
    "values",
    "array",
    "arr_0",
    "x",
    "activation",
    "activations",
];

/// Reads all array files of a folder and its subfolders. The name of an array is the path of its file without the
/// extension. If a file has several arrays, a dot and the array's name in the file are appended.
pub(super) fn read(folder: &Path) -> Result<NamedEntries> {
    let (mut arrays, mut others) = (Vec::new(), Vec::new());
    let found = files(folder)?;
    for file in found.arrays {
        let name = name_of(folder, &file);
        let (inside, unread) = entries(&FileBytes::open(&file)?)?;
        let is_alone = inside.len() == 1 && GENERIC_KEYS.contains(&inside[0].0.as_str());
        let joined = |key: &str| match key {
            "" => name.clone(),
            key => format!("{name}.{key}"),
        };
        others.extend(unread.iter().map(|key| joined(key)));
        arrays.extend(
            inside
                .into_iter()
                .map(|(key, stored)| (if is_alone { name.clone() } else { joined(&key) }, stored)),
        );
    }
    others.extend(
        found.unread.iter().map(|file| file.strip_prefix(folder).unwrap_or(file).display().to_string()),
    );
    Ok((arrays, others))
}

fn name_of(folder: &Path, file: &Path) -> String {
    let inside = file.strip_prefix(folder).unwrap_or(file).with_extension("");
    inside.to_string_lossy().replace(MAIN_SEPARATOR, "/")
}

/// Returns the array files of a folder and its subfolders, sorted. `None` if the path is not a folder.
///
/// # Errors
/// If the folder cannot be listed, or has too many files.
pub fn array_files(path: &Path) -> Result<Option<Vec<PathBuf>>> {
    if path.is_dir() { files(path).map(|found| Some(found.arrays)) } else { Ok(None) }
}

/// Files of a folder and its subfolders, sorted.
#[derive(Default)]
struct FolderFiles {
    arrays: Vec<PathBuf>,
    unread: Vec<PathBuf>,
}

fn files(folder: &Path) -> Result<FolderFiles> {
    let (mut found, mut left) = (FolderFiles::default(), vec![(folder.to_owned(), 0)]);
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
            let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
            let is_among = |known: &[&str]| extension.as_deref().is_some_and(|one| known.contains(&one));
            // A link to a folder may lead back to an outer folder.
            if kind.is_dir() && depth < MOST_DEEP {
                left.push((path, depth + 1));
            } else if is_among(ARRAYS) && path.is_file() {
                found.arrays.push(path);
            } else if is_among(UNREAD) && path.is_file() {
                found.unread.push(path);
            }
        }
    }
    found.arrays.sort();
    found.unread.sort();
    Ok(found)
}
