//! A directory of reports that is complete or empty, and known to be writable before the long work starts.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::report::{Report, json, junit, markdown};

type Exporter = fn(&Report) -> String;

const FILES: [(&str, Exporter); 3] = [("report.json", json), ("report.md", markdown), ("junit.xml", junit)];

/// A directory that a report will be written to.
///
/// Files of an earlier run are removed when it is made: whatever happens until [`ReportDir::write`], nobody
/// can take an old verdict for the new one.
#[derive(Debug)]
pub struct ReportDir {
    files: Vec<Pending>,
}

/// A file that has its content only under a temporary name, which goes when this is dropped.
#[derive(Debug)]
struct Pending {
    path: PathBuf,
    file: NamedTempFile,
    exporter: Exporter,
}

impl ReportDir {
    /// Makes the directory where it does not exist, and opens the files.
    ///
    /// # Errors
    /// If the directory or a file in it cannot be created.
    pub fn create(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
        let files = FILES.iter().map(|&(name, exporter)| Pending::open(directory.join(name), exporter));
        Ok(Self { files: files.collect::<Result<_>>()? })
    }

    /// Writes every file, then gives them their names.
    ///
    /// # Errors
    /// If one cannot be written; then none is there.
    pub fn write(mut self, report: &Report) -> Result<()> {
        for pending in &mut self.files {
            pending.fill(report)?;
        }
        let mut named: Vec<PathBuf> = Vec::new();
        for pending in self.files {
            match pending.persist() {
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

impl Pending {
    fn open(path: PathBuf, exporter: Exporter) -> Result<Self> {
        let directory = path.parent().expect("a file name was joined to a directory");
        let file = temporary().tempfile_in(directory).map_err(Error::io("create", &path))?;
        if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).map_err(Error::io("replace", &path))?;
        }
        Ok(Self { path, file, exporter })
    }

    fn fill(&mut self, report: &Report) -> Result<()> {
        let text = (self.exporter)(report);
        let file = self.file.as_file_mut();
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(Error::io("write", &self.path))
    }

    fn persist(self) -> Result<PathBuf> {
        self.file.persist(&self.path).map_err(|failed| Error::io("write", &self.path)(failed.error))?;
        Ok(self.path)
    }
}

/// Temporary files are private unless told otherwise; a report is for whoever the umask says.
fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".xcheck-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder
}
