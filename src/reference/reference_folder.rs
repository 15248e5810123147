//! Directory for making references: environments, scripts, logs and exported models.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::engine::{ReferenceEngine, ScriptFile};
use crate::disk_cache::{DiskCache, write_with_folders};
use crate::error::{Error, Result};

/// Folder for environments, scripts and logs.
#[derive(Clone, Debug)]
pub struct ReferenceFolder {
    folder: PathBuf,
}

impl ReferenceFolder {
    /// Uses the cache folder.
    ///
    /// # Errors
    /// If the cache is off, since an environment is too large for a single run.
    pub fn in_kept(kept: &DiskCache) -> Result<Self> {
        let none = || {
            Error::Usage(
                "XCHECK_CACHE is off: there is no folder for an engine's environment, script and log; set XCHECK_CACHE \
                 to a folder".into(),
            )
        };
        let folder = kept.folder().ok_or_else(none)?;
        let folder = std::path::absolute(folder).map_err(Error::io("find", folder))?;
        Ok(Self { folder })
    }

    /// Returns the folder of an engine's environment, which may not exist yet.
    pub fn environment(&self, engine: ReferenceEngine) -> PathBuf {
        self.folder.join("environments").join(engine.environment())
    }

    /// Returns the lock file that ensures that only one process makes an output.
    pub fn lock(&self, what: &str) -> PathBuf {
        self.folder.join("locks").join(what)
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.folder.join("logs").join(format!("{name}.log"))
    }

    /// Writes the scripts of an engine to files and returns their folder.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub(super) fn scripts(&self, engine: ReferenceEngine) -> Result<PathBuf> {
        let recipe = engine.recipe();
        let scripts: Vec<(&str, &[u8])> =
            recipe.scripts.iter().chain([&recipe.locked]).map(|script| as_file(engine, script)).collect();
        self.write_out("reference-scripts", engine.name(), &scripts)
    }

    /// Writes files to a folder of this kind and name. The folder's name contains the hash of the files, so it never
    /// contains other files.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub(crate) fn write_out(&self, kind: &str, name: &str, files: &[(&str, &[u8])]) -> Result<PathBuf> {
        let mut hash = Sha256::new();
        for (name, bytes) in files {
            hash.update(name);
            hash.update(bytes.len().to_le_bytes());
            hash.update(bytes);
        }
        let folder = format!("{name}-{}", &hex::encode(hash.finalize())[..12]);
        let folder = self.folder.join(kind).join(folder);
        for (name, bytes) in files {
            let path = folder.join(name);
            let is_there = fs::read(&path).is_ok_and(|found| found == *bytes);
            if !is_there {
                write_with_folders(&path, bytes).map_err(Error::io("write", &path))?;
            }
        }
        Ok(folder)
    }
}

/// Returns the file name and content of a script. llama.cpp's build script needs the requirements under their
/// own name.
fn as_file(engine: ReferenceEngine, &(name, text): &ScriptFile) -> (&'static str, &'static [u8]) {
    let is_locked = name == engine.recipe().locked.0;
    let name = match engine {
        ReferenceEngine::LlamaCpp if is_locked => "requirements-llama-cpp.txt",
        _ if is_locked => LOCKED,
        _ => name,
    };
    (name, text.as_bytes())
}

/// File name of the locked packages, next to the engine's scripts.
pub(super) const LOCKED: &str = "locked.txt";

/// Returns the absolute path of a program on the PATH, if it exists.
pub(crate) fn on_the_path(name: &str) -> Option<PathBuf> {
    let name = format!("{name}{}", env::consts::EXE_SUFFIX);
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&folders).map(|folder| folder.join(&name)).find(|path| is_program(path))?;
    std::path::absolute(found).ok()
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file()
}
