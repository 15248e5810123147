//! Printing a report and writing its files.

use std::io::stdout;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anstream::{AutoStream, ColorChoice};
use chrono::{DateTime, Utc};

use crate::cli::names::{command, plain_name};
use crate::cli::options::{BaselineOptions, ExtraOutput, OutputOptions, ReportFormat};
use crate::cli::terminal::{self, say, tell};
use crate::error::{Error, Result};
use crate::lazy_bytes;
use crate::ratchet::{self, Baseline};
use crate::report::{self, Report, ReportDir, RunFailure, TableOptions, Timing};
use crate::verdict::Verdict;

/// Default folder of reports.
pub(crate) const REPORTS: &str = "reports";

/// An opened report folder, and the format to print.
pub(crate) struct ReportOutput {
    format: ReportFormat,
    shows_maps: bool,
    is_verbose: bool,
    is_quiet: bool,
    directory: Option<(PathBuf, ReportDir)>,
    started: SystemTime,
    gate: Option<(BaselineOptions, PathBuf, Baseline)>,
}

impl ReportOutput {
    /// Opens the folder and removes an earlier report before anything is read, so that no old verdict remains after an
    /// error. `run` is the default name.
    ///
    /// # Errors
    /// If the folder is not writable, or the baseline file is invalid.
    pub(crate) fn open(options: &OutputOptions, run: &str) -> Result<Self> {
        Self::with(options, run, ReportDir::create)
    }

    /// Opens the output and keeps the results of an earlier run, so that the run can continue.
    ///
    /// # Errors
    /// The errors of [`ReportOutput::open`].
    pub(crate) fn going_on(options: &OutputOptions, run: &str) -> Result<Self> {
        Self::with(options, run, ReportDir::going_on)
    }

    fn with(options: &OutputOptions, run: &str, make: fn(&Path) -> Result<ReportDir>) -> Result<Self> {
        let directory = Self::place(options, run)
            .map(|path| make(&path).map(|directory| (path, directory)))
            .transpose()?;
        let mut output = Self {
            format: options.format,
            shows_maps: options.show == Some(ExtraOutput::Map),
            is_verbose: options.verbose,
            is_quiet: options.quiet,
            directory,
            started: SystemTime::now(),
            gate: None,
        };
        output.gate = output.or_refuse(|_| baseline(&options.baseline))?;
        Ok(output)
    }

    /// Returns the folder of the report's files.
    pub(crate) fn place(options: &OutputOptions, run: &str) -> Option<PathBuf> {
        let named = || options.report.clone().unwrap_or_else(|| PathBuf::from(REPORTS).join(plain_name(run)));
        (!options.no_report).then(named)
    }

    /// Reads the finished results of an earlier run, or returns the reason why this build cannot use them;
    /// `None` if there are none.
    pub(crate) fn finished(&self) -> Option<Result<Report, String>> {
        self.directory.as_ref().and_then(|(_, files)| files.finished())
    }

    /// Stores the finished results of an unfinished run.
    ///
    /// # Errors
    /// If the results cannot be written.
    pub(crate) fn keep(&self, report: &Report) -> Result<()> {
        self.directory.as_ref().map_or(Ok(()), |(_, files)| files.keep(report))
    }

    /// Returns the folder of the report's files.
    #[cfg(feature = "hub")]
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.directory.as_ref().map(|(path, _)| path.as_path())
    }

    /// Runs `find`. If it fails, the error is written to the report files before it is returned.
    ///
    /// # Errors
    /// The error of `find`, or a failed download during `find`.
    pub(crate) fn or_refuse<T>(&mut self, find: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let found =
            lazy_bytes::caught(|| find(self)).unwrap_or_else(|refused| Err(Error::Elsewhere(refused)));
        found.inspect_err(|error| self.refuse(error))
    }

    /// Compares the report with the baseline if there is one, writes the files, prints the report, and
    /// returns its verdict. With a JSON format, exactly one document is printed: the report, or the error.
    ///
    /// # Errors
    /// If the baseline belongs to another model, or the files cannot be written; then no report files remain.
    pub(crate) fn finish(mut self, report: &Report) -> Result<Verdict> {
        let report = &self.or_refuse(|output| output.gated(report))?;
        let written = self.directory.map(|(path, files)| files.write(report).map(|()| path)).transpose();
        match self.format {
            ReportFormat::Json if written.is_err() => {}
            ReportFormat::Json => terminal::document(&report::json(report)),
            ReportFormat::Agent => _ = terminal::out(&report::agent(report)),
            ReportFormat::Github => _ = terminal::out(&report::github(report)),
            ReportFormat::Table if self.is_quiet => {
                terminal::painted(&report::verdicts(report, colour()));
            }
            ReportFormat::Table => {
                let page = written.as_ref().ok().and_then(|path| path.as_ref());
                let page = page.map(|path| path.join("report.html").display().to_string());
                let style =
                    TableOptions { colour: colour(), is_detailed: self.is_verbose, page: page.as_deref() };
                terminal::painted(&format!("{}\n", report::table(report, style).trim_end()));
                terminal::painted(&report::maps(report, self.shows_maps, colour()));
                page.iter().for_each(|page| say!("report: {page}"));
            }
        }
        written?;
        Ok(report.verdict())
    }

    fn gated(&self, report: &Report) -> Result<Report> {
        let mut report = report.clone();
        let Some((options, path, baseline)) = &self.gate else { return Ok(report) };
        let today = DateTime::<Utc>::from(self.started).date_naive().to_string();
        match options.update_baseline {
            false => ratchet::gate(&mut report, baseline, &today)?,
            true => {
                let baseline = ratchet::updated(&report, baseline, &today, options.bits)?;
                baseline.write(path)?;
                tell!("baseline: {}", path.display());
                ratchet::gate(&mut report, &baseline, &today)?;
            }
        }
        Ok(report)
    }

    /// Writes the error to the report; a failure to do so is ignored, since the error is printed anyway.
    fn refuse(&mut self, error: &Error) {
        let Some((_, files)) = self.directory.take() else { return };
        let timing = Timing::since(self.started);
        _ = files.refuse(&RunFailure { command: command(), error: error.to_string(), timing });
    }
}

/// Returns true if output is coloured: on a terminal, unless NO_COLOR or TERM forbid it, and always with
/// CLICOLOR_FORCE.
fn colour() -> bool {
    AutoStream::choice(&stdout()) != ColorChoice::Never
}

/// Reads the requested baseline. With `--update-baseline`, the file need not exist.
fn baseline(options: &BaselineOptions) -> Result<Option<(BaselineOptions, PathBuf, Baseline)>> {
    let Some(path) = &options.baseline else { return Ok(None) };
    let baseline = match options.update_baseline && !path.exists() {
        true => Baseline::default(),
        false => Baseline::read(path)?,
    };
    Ok(Some((options.clone(), path.clone(), baseline)))
}
