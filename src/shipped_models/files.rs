//! Files of a shipped model: from the first search folder that has the model, otherwise from the program.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::embedded_files;
use crate::error::{Error, ModelError, Result};
use crate::format::FileBytes;

/// Environment variable with the only folder to search.
pub(crate) const VARIABLE: &str = "XCHECK_CHECKPOINTS";

/// Advice when a model is missing.
pub(super) const HOW_TO_GET: &str = "the models are in the folder 'checkpoints' of xcheck's repository: set \
                                     XCHECK_CHECKPOINTS to that folder, or copy it to ~/.local/share/xcheck/";

/// The files of one shipped model, by path in its folder.
#[derive(Debug)]
pub(crate) struct ShippedFiles {
    model: &'static str,
    /// Folder of the files; `None` for files inside the program.
    folder: Option<PathBuf>,
    names: Vec<String>,
}

impl ShippedFiles {
    /// Finds the files of a model.
    ///
    /// # Errors
    /// If there are no files, or the folder cannot be listed.
    pub(crate) fn of(model: &'static str) -> Result<Self> {
        let places = places()?;
        match places.iter().map(|place| place.join(model)).find(|folder| folder.is_dir()) {
            Some(folder) => {
                let mut names = Vec::new();
                list(&folder, "", &mut names)?;
                names.sort();
                Ok(Self { model, folder: Some(folder), names })
            }
            None => Self::inside(model).ok_or_else(|| missing(model, &places)),
        }
    }

    /// Returns the files inside the program.
    fn inside(model: &'static str) -> Option<Self> {
        let names =
            embedded_files::FILES.iter().filter_map(|(path, _)| path.strip_prefix(model)?.strip_prefix('/'));
        let names: Vec<String> = names.map(str::to_owned).collect();
        (!names.is_empty()).then_some(Self { model, folder: None, names })
    }

    /// Returns an error about these files.
    pub(super) fn refused(&self, what: &str) -> Error {
        let folder = self.folder().unwrap_or(Path::new("the program")).display();
        let problem = format!("{folder} {what}; copy the whole folder of the model again");
        ModelError::NoModel { name: self.model.to_owned(), problem }.into()
    }

    /// Returns the folder of the files, unless they are inside the program.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns the paths in the folder, with `/`, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Opens a file, if it exists.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) fn open(&self, name: &str) -> Result<Option<FileBytes>> {
        if !self.names().any(|known| known == name) {
            return Ok(None);
        }
        match &self.folder {
            Some(folder) => FileBytes::open(&folder.join(name)).map(Some),
            None => {
                let path = format!("{}/{name}", self.model);
                let found = embedded_files::FILES.iter().find(|(known, _)| *known == path);
                Ok(found.map(|(_, bytes)| FileBytes::embedded(path, bytes)))
            }
        }
    }

    /// Opens the files with that extension in a subfolder, or in the folder itself if the name is empty; returns stem
    /// and file.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub(crate) fn with_extension(&self, folder: &str, extension: &str) -> Result<Vec<(String, FileBytes)>> {
        let wanted = self.names().filter_map(|name| {
            let (found, file) = name.rsplit_once('/').unwrap_or(("", name));
            let (stem, ending) = file.rsplit_once('.')?;
            (found == folder && ending == extension).then_some((name, stem))
        });
        let opened = wanted.map(|(name, stem)| Ok(self.open(name)?.map(|source| (stem.to_owned(), source))));
        opened.filter_map(Result::transpose).collect()
    }
}

/// Returns the search folders for models, in order.
///
/// # Errors
/// If the variable does not name a folder.
pub fn places() -> Result<Vec<PathBuf>> {
    places_by(|name| env::var_os(name), env::home_dir())
}

/// Returns the search folders for the given variables and home folder.
///
/// # Errors
/// If the variable names no folder.
pub fn places_by(variable: impl Fn(&str) -> Option<OsString>, user: Option<PathBuf>) -> Result<Vec<PathBuf>> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = set(VARIABLE) {
        return match folder.is_dir() {
            true => Ok(vec![folder]),
            false => Err(Error::Usage(format!(
                "{VARIABLE} is {}, expected a folder with one folder for each model, such as 'checkpoints' in xcheck's \
                 repository",
                folder.display()
            ))),
        };
    }
    let data = set("XDG_DATA_HOME").or_else(|| Some(user?.join(".local/share")));
    Ok(checkout().into_iter().chain(data.map(|data| data.join("xcheck/checkpoints"))).collect())
}

/// Returns the `checkpoints` folder of the repository in which this program was built; `None` if it was built from
/// a package. A package, to which cargo adds `Cargo.toml.orig`, has no more models than the program.
fn checkout() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    (!root.join("Cargo.toml.orig").exists()).then(|| root.join("checkpoints"))
}

/// Lists the files of a folder and of its subfolders.
fn list(folder: &Path, below: &str, names: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let path = entry.map_err(Error::io("list", folder))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        match path.is_dir() {
            true if below.is_empty() => list(&path, &format!("{name}/"), names)?,
            true => {}
            false => names.push(format!("{below}{name}")),
        }
    }
    Ok(())
}

fn missing(model: &str, places: &[PathBuf]) -> Error {
    let looked: Vec<_> = places.iter().map(|place| place.join(model).display().to_string()).collect();
    let problem = format!(
        "it ships with xcheck, but is not on this machine; searched {}; {HOW_TO_GET}",
        looked.join(" and ")
    );
    ModelError::NoModel { name: model.to_owned(), problem }.into()
}
