//! Libraries that panic for some damaged or contradictory files.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// Calls a library and returns its result; `None` if the library panics. The panic message would only confuse
/// users, so it is not printed. State that the call has changed must not be used after a panic.
pub fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    thread_local!(static IS_CALLED: Cell<bool> = const { Cell::new(false) });
    static HUSH: Once = Once::new();
    HUSH.call_once(|| {
        let aloud = panic::take_hook();
        panic::set_hook(Box::new(move |of| {
            if !IS_CALLED.get() {
                aloud(of)
            }
        }));
    });
    IS_CALLED.set(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_CALLED.set(false);
    result.ok()
}
