//! `xcheck diff`: compares a report with an older one.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::cli::terminal::say;
use crate::error::Result;
use crate::ratchet::{self, Diff};
use crate::report::RecordedReport;
use crate::verdict::Verdict;

/// Arguments of `xcheck diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 nothing is worse, 1 something is worse, 2 bad input or usage, 3 nothing comparable"
)]
pub(crate) struct DiffArgs {
    /// Older report.json, or its folder
    ///
    /// Any build that writes this version of the schema can have written it.
    old: PathBuf,
    /// Newer report.json, or its folder
    new: PathBuf,
    /// Count lost bit-identity as worse
    #[arg(long)]
    bits: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = DiffFormat::Table)]
    format: DiffFormat,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DiffFormat {
    /// A table for the terminal
    Table,
    /// Markdown for a pull request comment
    Markdown,
    /// JSON
    Json,
}

/// Prints the changes. The exit code is 1 if something became worse.
pub(crate) fn run(args: &DiffArgs) -> Result<Verdict> {
    let [old, new] = [&args.old, &args.new].map(|path| RecordedReport::read(&file(path)));
    let (old, new) = (old?, new?);
    old.check_names()?;
    new.check_names()?;
    let diff = Diff::new(&old, &new, args.bits);
    let text = match args.format {
        DiffFormat::Table => ratchet::table(&diff),
        DiffFormat::Markdown => ratchet::markdown(&diff),
        DiffFormat::Json => ratchet::json(&diff),
    };
    say!("{}", text.trim_end());
    Ok(diff.verdict())
}

fn file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("report.json") } else { path.to_owned() }
}
