//! A report folder that is either complete or empty. It is checked to be writable before the comparison
//! starts.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::atomic_write::UnfinishedFile;
use crate::error::{Error, Result};
use crate::report::schema::ReportFile;
use crate::report::{Report, ReportContent, RunFailure, html, json, junit, markdown, read};

/// Files of a report, for programs, pull requests, browsers and continuous integration.
const FILES: [&str; 4] = ["report.json", "report.md", "report.html", "junit.xml"];
/// File with the finished units of a shard. An interrupted run continues from it.
const FINISHED: &str = "finished.json";

/// A directory that a report will be written to.
///
/// Files of an earlier run are removed first. So an old verdict cannot be mistaken for a new one, even if the
/// run is interrupted before [`ReportDir::write`].
#[derive(Debug)]
pub struct ReportDir {
    directory: PathBuf,
}

impl ReportDir {
    /// Creates the folder if needed, checks that it is writable, and removes earlier reports and
    /// unfinished results.
    ///
    /// # Errors
    /// If the directory or a file in it cannot be created, or an old file cannot be removed.
    pub fn create(directory: &Path) -> Result<Self> {
        Self::without(directory, &[FILES.as_slice(), &[FINISHED]].concat())
    }

    /// Opens the folder and keeps the finished units, so that the run can continue.
    ///
    /// # Errors
    /// The errors of [`ReportDir::create`].
    pub fn going_on(directory: &Path) -> Result<Self> {
        Self::without(directory, &FILES)
    }

    fn without(directory: &Path, old: &[&str]) -> Result<Self> {
        fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
        let _lock = lock(directory);
        for name in old {
            let path = directory.join(name);
            UnfinishedFile::of(&path).map_err(Error::io("create", &path))?;
            if path.symlink_metadata().is_ok() {
                fs::remove_file(&path).map_err(Error::io("replace", &path))?;
            }
        }
        Ok(Self { directory: directory.to_owned() })
    }

    /// Reads the finished results of an earlier run, or returns the reason why this build cannot use them;
    /// `None` if there are none.
    pub fn finished(&self) -> Option<Result<Report, String>> {
        let path = self.directory.join(FINISHED);
        path.is_file().then(|| match read(&path) {
            Ok(ReportContent::Report(report)) => Ok(*report),
            Ok(ReportContent::Refused(problem)) => Err(problem),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Replaces the stored finished results.
    ///
    /// # Errors
    /// If the file cannot be written; the earlier results then stay unchanged.
    pub fn keep(&self, report: &Report) -> Result<()> {
        self.put(&[FINISHED], &[json(report)])
    }

    /// Writes all report files, then renames them to their final names. The folder is locked against other
    /// runs.
    ///
    /// # Errors
    /// If a file cannot be written; then no report remains.
    pub fn write(self, report: &Report) -> Result<()> {
        self.put(&FILES, &[json(report), markdown(report), html(report), junit(report)])
    }

    /// Writes the report files of a run without a verdict.
    ///
    /// # Errors
    /// The errors of [`ReportDir::write`].
    pub fn refuse(self, refusal: &RunFailure) -> Result<()> {
        let json = ReportFile::from(refusal).text();
        self.put(&FILES, &[json, markdown::refused(refusal), html::refused(refusal), junit::refused(refusal)])
    }

    fn put(&self, names: &[&str], texts: &[String]) -> Result<()> {
        let files = names.iter().zip(texts);
        let written = files.map(|(name, text)| PendingFile::new(self.directory.join(name), text));
        let written = written.collect::<Result<Vec<_>>>()?;
        let _lock = lock(&self.directory);
        let mut named: Vec<PathBuf> = Vec::new();
        for file in written {
            match file.persist() {
                Ok(path) => named.push(path),
                Err(error) => {
                    named.iter().for_each(|path| drop(fs::remove_file(path)));
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// A complete file that does not yet have its final name.
struct PendingFile {
    path: PathBuf,
    file: UnfinishedFile,
}

impl PendingFile {
    fn new(path: PathBuf, text: &str) -> Result<Self> {
        let mut file = UnfinishedFile::of(&path).map_err(Error::io("create", &path))?;
        let written = file.as_file().write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all());
        written.map_err(Error::io("write", &path))?;
        Ok(Self { path, file })
    }

    fn persist(self) -> Result<PathBuf> {
        self.file.finish().map_err(Error::io("write", &self.path))?;
        Ok(self.path)
    }
}

/// Locks the folder, so that all its files belong to one run. Waits for other runs to finish. The
/// folder itself is locked, so no lock file remains. Errors are ignored, since some systems cannot lock.
fn lock(directory: &Path) -> Option<File> {
    let handle = File::open(directory).ok()?;
    handle.lock().ok().map(|()| handle)
}
