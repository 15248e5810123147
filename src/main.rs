//! The `xcheck` command.
#![forbid(unsafe_code)]

use std::panic::catch_unwind;
use std::process::ExitCode;

use xcheck::cli;
use xcheck::fatal_error;

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
    // The main thread computes too: else every operation would wait for another thread to wake. If that fails, the pool
    // is made when it is first used. No number asked for is 0, rayon's own choice.
    let threads = cli.threads().unwrap_or_default();
    _ = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build_global();
    // A fault of this program is none of what it judges: its exit code must not be another program's verdict.
    catch_unwind(|| cli::main(&cli, &notes)).unwrap_or_else(|_| cli::broken())
}
