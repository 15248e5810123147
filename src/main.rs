//! The `xcheck` command.

use std::process::ExitCode;

use clap::Parser;
use xcheck::cli::{self, Cli};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return cli::refuse(&usage),
    };
    // The main thread computes too: else every operation would wait for another thread to wake. If that fails, the pool
    // is made when it is first used. No number asked for is 0, rayon's own choice.
    let threads = cli.threads().unwrap_or_default();
    _ = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build_global();
    cli::main(&cli)
}
