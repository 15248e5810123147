//! The `xcheck` command.

use std::process::ExitCode;

use clap::Parser;
use xcheck::cli::{self, Cli};

fn main() -> ExitCode {
    // The main thread computes too: else every operation would wait for another thread to wake. If that fails, the pool
    // is made when it is first used.
    _ = rayon::ThreadPoolBuilder::new().use_current_thread().build_global();
    cli::main(&Cli::parse())
}
