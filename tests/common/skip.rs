//! Skipped tests: each says why, and a list of all follows the results of `cargo test`.
//!
//! libtest knows no test that skips itself: such a test passes, and its output is hidden. `XCHECK_REQUIRE_ALL=1` makes
//! each of them fail.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::panic::Location;
use std::sync::{Mutex, Once, PoisonError};

/// The first reason of each test.
static SKIPPED: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Records that the running test is skipped; its caller returns.
///
/// # Panics
/// If `XCHECK_REQUIRE_ALL` is set, to anything but 0.
#[track_caller]
pub fn skip(reason: impl Display) {
    static PRINT_AT_EXIT: Once = Once::new();
    let is_required = std::env::var_os("XCHECK_REQUIRE_ALL").is_some_and(|value| value != "0");
    assert!(!is_required, "skipped although XCHECK_REQUIRE_ALL is set: {reason}");
    // SAFETY: The function does not unwind, and uses nothing that is gone at exit.
    PRINT_AT_EXIT.call_once(|| _ = unsafe { libc::atexit(print) });
    let mut skipped = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    skipped.entry(running_test(Location::caller())).or_insert_with(|| reason.to_string());
}

/// Returns the name of the running test, or the position in the source if tests run in the main thread.
fn running_test(caller: &Location) -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => format!("{}:{}", caller.file(), caller.line()),
    }
}

/// Prints the list. libtest has printed its summary by now.
extern "C" fn print() {
    let skipped = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut list = format!("skipped: {} (XCHECK_REQUIRE_ALL=1 makes each a failure)\n", skipped.len());
    list.extend(skipped.iter().map(|(test, reason)| format!("SKIPPED {test}: {reason}\n")));
    // Not `println!`: the harness may capture it.
    _ = std::io::stdout().write_all(format!("{list}\n").as_bytes());
}
