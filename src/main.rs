//! The `xcheck` command.
#![forbid(unsafe_code)]

use std::panic::catch_unwind;
use std::process::ExitCode;

use xcheck::{cli, fatal_error};

#[global_allocator]
static ALLOCATOR: fatal_error::CheckedAllocator = fatal_error::CheckedAllocator;

fn main() -> ExitCode {
    fatal_error::keep_freed_memory();
    fatal_error::watch_mapped_files();
    let words = cli::with_environment(std::env::args_os().collect(), |name| std::env::var_os(name));
    let (words, notes) = match words {
        Ok(found) => found,
        Err(error) => return cli::fail(&error),
    };
    let cli = match cli::parse(words) {
        Ok(cli) => cli,
        Err(usage) => return cli::refuse(&usage),
    };
    // The main thread is part of the pool, so that operations need not wake another thread. If that fails,
    // the pool is created on first use. A requested number is never 0, which is rayon's default.
    let threads = cli.threads().unwrap_or_default();
    _ = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build_global();
    // A panic must not exit with a code that means a verdict about another program.
    catch_unwind(|| cli::main(&cli, &notes)).unwrap_or_else(|_| cli::broken())
}
