//! Directory of a matrix. One process uses it at a time, and its files are written atomically.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sha2::Sha256;

use crate::atomic_write::write_whole;
use crate::cli::terminal::tell;
use crate::disk_cache::hash_of;
use crate::error::{Error, Result};
use crate::matrix::{ComparisonMatrix, MatrixCell, html, json, markdown};

const FILES: [&str; 3] = ["matrix.json", "matrix.md", "matrix.html"];
const LOCK: &str = ".lock";
const REPORT: &str = "report.json";
/// File with the key of a finished report.
const SEAL: &str = "matrix.key";
/// File with the cache key of the output of `make` that the report is about.
const MADE: &str = "made.key";

/// The folder of a matrix, locked by one process at a time.
pub(crate) struct MatrixFolder {
    folder: PathBuf,
    lock: File,
}

impl MatrixFolder {
    /// Creates the folder if needed, waits for other processes that use it, and removes the previous
    /// table.
    ///
    /// # Errors
    /// If the folder is not writable.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let path = folder.join(LOCK);
        let lock = File::options().create(true).append(true).read(true).open(&path);
        let lock = lock.map_err(Error::io("create", &path))?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            tell!("waiting: another xcheck matrix, or a process that it started, uses {}", folder.display());
            lock.lock().map_err(Error::io("lock", &path))?;
        }
        for name in FILES {
            remove(&folder.join(name))?;
        }
        Ok(Self { folder: folder.to_owned(), lock })
    }

    /// Returns the folder's path as a command-line argument.
    pub(crate) fn shown(&self) -> String {
        self.folder.display().to_string()
    }

    /// Returns the path of a cell's report.
    pub(crate) fn report(&self, cell: &MatrixCell) -> PathBuf {
        self.folder.join("cells").join(&cell.name)
    }

    /// Returns the folder that `make` writes for a cell.
    pub(crate) fn made(&self, cell: &MatrixCell) -> PathBuf {
        self.folder.join("made").join(&cell.name)
    }

    /// Returns the standard input for a child process. It is empty, and keeps the folder's lock. If a matrix process is
    /// killed, the next one therefore waits for its children.
    ///
    /// # Errors
    /// If no more files can be opened.
    pub(crate) fn stdin(&self) -> Result<Stdio> {
        let path = self.folder.join(LOCK);
        Ok(self.lock.try_clone().map_err(Error::io("open", &path))?.into())
    }

    /// Writes the tables.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(crate) fn write(&self, matrix: &ComparisonMatrix) -> Result<()> {
        let texts = [json(matrix), markdown(matrix), html(matrix)];
        FILES.iter().zip(texts).try_for_each(|(name, text)| put(&self.folder.join(name), &text))
    }
}

/// Returns true if a folder has a finished report with this key whose files have not changed since.
pub(crate) fn is_known(folder: &Path, key: &str) -> bool {
    let seal = fs::read_to_string(folder.join(SEAL)).ok();
    seal.is_some_and(|seal| sealed(folder, key).is_ok_and(|expected| expected == seal))
}

/// Stores the key of the finished report in a folder.
///
/// # Errors
/// If the key cannot be written.
pub(crate) fn seal(folder: &Path, key: &str) -> Result<()> {
    put(&folder.join(SEAL), &sealed(folder, key)?)
}

/// Removes the key of the report in a folder.
///
/// # Errors
/// If the key cannot be removed.
pub(crate) fn unseal(folder: &Path) -> Result<()> {
    remove(&folder.join(SEAL))
}

fn sealed(folder: &Path, key: &str) -> Result<String> {
    let report = folder.join(REPORT);
    let mut file = File::open(&report).map_err(Error::io("open", &report))?;
    let hash = hash_of(<Sha256 as sha2::Digest>::new(), &mut file).map_err(Error::io("read", &report))?;
    Ok(format!("{key} {hash}\n"))
}

/// Returns true if the report in `folder` is about a `make` output with this cache key.
pub(crate) fn is_made(folder: &Path, key: &str) -> bool {
    fs::read_to_string(folder.join(MADE)).is_ok_and(|known| known == key)
}

/// Stores the key of the generated input (a converted model, a dump) that the report in `folder` is about.
///
/// # Errors
/// If the key cannot be written.
pub(crate) fn keep_made(folder: &Path, key: &str) -> Result<()> {
    put(&folder.join(MADE), key)
}

/// Creates an empty folder `made` and removes the key of its old content.
///
/// # Errors
/// If the folder cannot be created or emptied.
pub(crate) fn begin_making(folder: &Path, made: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    remove(&folder.join(MADE))?;
    if made.symlink_metadata().is_ok() {
        fs::remove_dir_all(made).map_err(Error::io("empty", made))?;
    }
    fs::create_dir_all(made).map_err(Error::io("create", made))
}

/// Returns the last lines of a program's output.
pub(crate) fn last_words(log: &Path) -> String {
    const MOST: u64 = 2000;
    const LINES: usize = 5;
    let mut bytes = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MOST)))?;
        file.take(MOST).read_to_end(&mut bytes)
    });
    let text = if read.is_ok() { String::from_utf8_lossy(&bytes).into_owned() } else { String::new() };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join(" / ")
}

fn put(path: &Path, text: &str) -> Result<()> {
    write_whole(path, text.as_bytes()).map_err(Error::io("write", path))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("replace", path)(error)),
        _ => Ok(()),
    }
}
