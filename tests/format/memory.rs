//! How much memory a call holds at its worst.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of measured calls that are running. If it is 0, allocations are not counted, to save time.
static MEASURED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting the bytes that each thread holds: tests run side by side.
pub struct Counting;

// SAFETY: every call goes to `System` unchanged, and counting neither allocates nor unwinds: the counters are
// plain numbers without a destructor, and `try_with` covers a thread that is coming to its end.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Old and new may both exist while the content moves.
        count(new_size as isize);
        count(-(layout.size() as isize));
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn count(bytes: isize) {
    if MEASURED.load(Relaxed) == 0 {
        return;
    }
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

/// Runs `work` and tells how many bytes it held at once, beyond those held before.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    MEASURED.fetch_add(1, Relaxed);
    let result = work();
    MEASURED.fetch_sub(1, Relaxed);
    (result, (PEAK.get() - before) as usize)
}

#[test]
fn the_counter_sees_what_a_call_allocates_and_frees() {
    let ((), peak) = peak_of(|| drop(std::hint::black_box(vec![0u8; 100_000])));
    assert!((100_000..101_000).contains(&peak), "{peak}");
    let ((), peak) = peak_of(|| ());
    assert_eq!(peak, 0);
}
