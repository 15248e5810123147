//! Printing a report and writing its files.

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;

use crate::cli::options::{Format, OutputOptions};
use crate::compare::Verdict;
use crate::error::Result;
use crate::report::{self, Report, ReportDir};

/// Where reports go that were not sent elsewhere.
const REPORTS: &str = "reports";

/// Report files that were opened before the work, and the format to print.
pub struct Output {
    format: Format,
    directory: Option<(PathBuf, ReportDir)>,
}

impl Output {
    /// Opens the files: a place that cannot be written is known before the work, not after it.
    ///
    /// # Errors
    /// If they cannot be opened.
    pub fn open(options: &OutputOptions, run: &str) -> Result<Self> {
        let path = match &options.report {
            _ if options.no_report => None,
            Some(path) => Some(path.clone()),
            None => Some(PathBuf::from(REPORTS).join(plain_name(run))),
        };
        let directory = path.map(|path| Ok((path.clone(), ReportDir::create(&path)?))).transpose()?;
        Ok(Self { format: options.format, directory })
    }

    /// Writes the files, prints the report, and gives back its verdict.
    ///
    /// # Errors
    /// If the files cannot be written; nothing is left of them then.
    pub fn finish(self, report: &Report) -> Result<Verdict> {
        let written = self.directory.map(|(path, files)| files.write(report).map(|()| path)).transpose();
        match self.format {
            Format::Json => anstream::println!("{}", report::json(report).trim_end()),
            Format::Table => {
                anstream::println!("{}", report::table(report, stdout().is_terminal()).trim_end());
                if let Ok(Some(path)) = &written {
                    anstream::println!("report: {}", path.join("report.md").display());
                }
            }
        }
        written?;
        Ok(report.verdict())
    }
}

/// A name that can be a folder's.
pub fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}
