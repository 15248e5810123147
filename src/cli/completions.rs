//! `xcheck completions`: what a shell completes.

use std::io::Write;
use std::path::Path;

use clap::{Args as ClapArgs, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::compare::Verdict;
use crate::error::{Error, Result};

/// Arguments of `xcheck completions`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Which shell reads it
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args) -> Result<Verdict> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "xcheck", &mut script);
    std::io::stdout().write_all(&script).map_err(Error::io("write", Path::new("standard output")))?;
    Ok(Verdict::Pass)
}
