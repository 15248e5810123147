//! Printing a report and writing its files.

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cli::options::{Format, OutputOptions};
use crate::cli::run::command;
use crate::compare::Verdict;
use crate::error::{Error, Result};
use crate::report::{self, Refusal, Report, ReportDir, Timing};

/// Where reports go that were not sent elsewhere.
const REPORTS: &str = "reports";

/// A place for report files that was made before the work, and the format to print.
pub struct Output {
    format: Format,
    directory: Option<(PathBuf, ReportDir)>,
    started: SystemTime,
}

impl Output {
    /// Makes the place, and removes an earlier report from it. Before anything is read: whatever is wrong with a model or
    /// a dump, no old verdict stays that could be taken for the new one. `run` names the place where none was asked for.
    ///
    /// # Errors
    /// If it cannot be written to.
    pub fn open(options: &OutputOptions, run: &str) -> Result<Self> {
        let path = match &options.report {
            _ if options.no_report => None,
            Some(path) => Some(path.clone()),
            None => Some(PathBuf::from(REPORTS).join(plain_name(run))),
        };
        let directory = path.map(|path| Ok((path.clone(), ReportDir::create(&path)?))).transpose()?;
        Ok(Self { format: options.format, directory, started: SystemTime::now() })
    }

    /// What was found; an error is written to the files before it is given back.
    ///
    /// # Errors
    /// That of `found`.
    pub fn or_refuse<T>(&mut self, found: Result<T>) -> Result<T> {
        found.inspect_err(|error| self.refuse(error))
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

    /// The error is told anyway: that it cannot be written too is not worth another.
    fn refuse(&mut self, error: &Error) {
        let Some((_, files)) = self.directory.take() else { return };
        let timing = Timing::since(self.started);
        _ = files.refuse(&Refusal { command: command(), error: error.to_string(), timing });
    }
}

/// A name that can be a folder's.
pub fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}

/// What a model is called in the name of a run's folder. It is told by the argument alone: a file that is not there any
/// more must not make another folder of it, in which nobody looks.
pub fn model_name(typed: &str) -> &str {
    let (path, part) = typed.split_once(':').unwrap_or((typed, ""));
    let is_file = Path::new(path).extension().is_some_and(|kind| kind == "gguf" || kind == "bin");
    let of_the_hub =
        path.matches('/').count() == 1 && !path.starts_with(['/', '.', '~']) && !path.ends_with('/');
    let path = Path::new(typed);
    let last = if is_file && part.is_empty() { path.file_stem() } else { path.file_name() };
    match last.and_then(|name| name.to_str()) {
        Some(name) if is_file || !of_the_hub => name,
        _ => typed,
    }
}
