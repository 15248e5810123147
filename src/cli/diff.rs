//! `xcheck diff`: one report against an older one.

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueEnum};

use crate::cli::terminal::say;
use crate::compare::Verdict;
use crate::error::Result;
use crate::ratchet::{self, Diff};
use crate::report::Seen;

/// Arguments of `xcheck diff`.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Exit codes: 0 nothing became worse, 1 something did, 2 bad input or usage, 3 nothing could be compared"
)]
pub struct Args {
    /// The older report.json, or the folder it is in; of any build that writes this version of the schema
    old: PathBuf,
    /// The newer one, likewise
    new: PathBuf,
    /// What was bit-identical and is not any more is worse
    #[arg(long)]
    bits: bool,
    /// What to print
    #[arg(long, value_enum, default_value_t = DiffFormat::Table)]
    format: DiffFormat,
}

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DiffFormat {
    /// For a terminal
    Table,
    /// For a comment on a pull request
    Markdown,
    /// For other programs
    Json,
}

/// Tells what changed; the exit code is 1 where something became worse.
pub fn run(args: &Args) -> Result<Verdict> {
    let [old, new] = [&args.old, &args.new].map(|path| Seen::read(&file(path)));
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
