//! `xcheck merge`: one report of the reports of shards.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args as ClapArgs;

use crate::cli::options::OutputOptions;
use crate::cli::output::Output;
use crate::cli::run::command;
use crate::compare::Verdict;
use crate::error::Result;
use crate::report::{self, Read, Report, Timing};

/// Arguments of `xcheck merge`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Reports of shards: report.json, finished.json of a run that was stopped, or the folder that they are in. A unit of
    /// which there is none is inconclusive; one of which two differ fails
    #[arg(value_name = "REPORT", required = true)]
    reports: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputOptions,
}

/// Puts the reports together; the exit code is that of the whole.
pub fn run(args: &Args) -> Result<Verdict> {
    let mut output = Output::open(&args.output, "merge")?;
    let report = output.or_refuse(merged(args))?;
    output.finish(&report)
}

fn merged(args: &Args) -> Result<Report> {
    let started = SystemTime::now();
    let read = |path: &PathBuf| -> Result<(String, Read)> {
        let path = file(path);
        Ok((path.display().to_string(), report::read(&path)?))
    };
    let reports = args.reports.iter().map(read).collect::<Result<Vec<_>>>()?;
    report::merge(reports, command(), Timing::since(started))
}

/// The report in a folder: of a run that was stopped, what it had finished.
fn file(path: &Path) -> PathBuf {
    let inside = |name: &str| path.join(name);
    match path.is_dir() {
        true => [inside("report.json"), inside("finished.json")]
            .into_iter()
            .find(|file| file.is_file())
            .unwrap_or_else(|| inside("report.json")),
        false => path.to_owned(),
    }
}
