//! The `xcheck` command.

use std::process::ExitCode;

use clap::Parser;
use xcheck::cli::{self, Cli};

fn main() -> ExitCode {
    cli::main(&Cli::parse())
}
