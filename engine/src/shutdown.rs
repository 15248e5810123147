//! On SIGINT, SIGTERM or SIGHUP: kills child processes and deletes temporary files.

use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A cleanup that runs once before the program ends.
type Cleanup = Box<dyn Fn() + Send>;

static LAST: Mutex<Vec<Cleanup>> = Mutex::new(Vec::new());

/// Registers a cleanup that runs before SIGHUP, SIGINT or SIGTERM ends the program. It runs in its own thread while
/// the other threads continue.
///
/// # Errors
/// If signal handlers cannot be installed.
pub fn before(last: impl Fn() + Send + 'static) -> io::Result<()> {
    static WATCHED: OnceLock<Result<(), io::ErrorKind>> = OnceLock::new();
    lasts().push(Box::new(last));
    (*WATCHED.get_or_init(|| watch().map_err(|error| error.kind()))).map_err(Into::into)
}

fn lasts() -> MutexGuard<'static, Vec<Cleanup>> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(unix)]
fn watch() -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let wait = move || {
        for signal in signals.forever() {
            lasts().iter().for_each(|last| last());
            _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}

#[cfg(not(unix))]
fn watch() -> io::Result<()> {
    Ok(())
}
