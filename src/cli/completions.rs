//! `xcheck completions`: prints a shell completion script.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::{Cli, terminal};
use crate::error::Result;
use crate::verdict::Verdict;

/// Arguments of `xcheck completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    shell: Shell,
}

/// Prints the completion script.
pub(crate) fn run(args: &CompletionsArgs) -> Result<Verdict> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "xcheck", &mut script);
    _ = terminal::out(&String::from_utf8_lossy(&script));
    Ok(Verdict::Pass)
}
