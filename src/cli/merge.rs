//! `xcheck merge`: merges the reports of shards into one report.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;

use crate::cli::names::command;
use crate::cli::options::OutputOptions;
use crate::cli::output::ReportOutput;
use crate::error::{Error, Result};
use crate::report::{self, Report, ReportContent, Timing};
use crate::verdict::Verdict;

/// Arguments of `xcheck merge`.
#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// Reports of shards: report.json, finished.json or their folders
    ///
    /// A run that was stopped leaves finished.json. Missing units are inconclusive; conflicting units fail.
    #[arg(value_name = "REPORT", required = true)]
    reports: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputOptions,
}

/// Merges the reports. The exit code is that of the merged report.
pub(crate) fn run(args: &MergeArgs) -> Result<Verdict> {
    check_place(args)?;
    let mut output = ReportOutput::open(&args.output, "merge")?;
    let report = output.or_refuse(|_| merged(args))?;
    output.finish(&report)
}

/// Checks that no input file is in the report folder, which is emptied first.
fn check_place(args: &MergeArgs) -> Result<()> {
    let place = ReportOutput::place(&args.output, "merge").and_then(|place| place.canonicalize().ok());
    let folder = |path: &PathBuf| {
        if path.is_dir() {
            path.clone()
        } else {
            path.parent().map_or_else(PathBuf::new, |parent| Path::new(".").join(parent))
        }
    };
    let is_there = |path: &&PathBuf| place.is_some() && folder(path).canonicalize().ok() == place;
    match args.reports.iter().find(is_there) {
        Some(path) => Err(Error::Usage(format!(
            "{}: the merged report would overwrite this input; name another folder with --report",
            path.display()
        ))),
        None => Ok(()),
    }
}

fn merged(args: &MergeArgs) -> Result<Report> {
    let started = SystemTime::now();
    let read = |path: &PathBuf| -> Result<(String, ReportContent)> {
        let read = match file(path) {
            Some(file) => report::read(&file)?,
            None => ReportContent::Refused("the run left neither a report nor finished units".to_owned()),
        };
        Ok((path.display().to_string(), read))
    };
    let reports = args.reports.iter().map(read).collect::<Result<Vec<_>>>()?;
    report::merge(reports, command(), Timing::since(started))
}

/// Returns the report file in a folder: `report.json`, or `finished.json` of an interrupted run; `None` if
/// neither exists.
fn file(path: &Path) -> Option<PathBuf> {
    if !path.is_dir() {
        return Some(path.to_owned());
    }
    ["report.json", "finished.json"].map(|name| path.join(name)).into_iter().find(|file| file.is_file())
}
