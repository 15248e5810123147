//! Ends the program with a message and exit code 2 when memory is exhausted or a mapped file is truncated.
//! Nothing in this module may allocate.

#![expect(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Cursor, Write};

use crate::memory;

/// Size in bytes from which a request for memory is compared with the available memory, because the system promises
/// more than it has.
const LARGE: usize = 1 << 28;

/// The system's allocator, except that the program ends with a message instead of an abort if memory is exhausted.
pub struct CheckedAllocator;

// SAFETY: every call goes to `System` unchanged, or does not return. Allocated memory is not touched. The check before
// a large request (reading /proc) allocates little, so its own requests are never large.
unsafe impl GlobalAlloc for CheckedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        afford(layout.size());
        in_large_pages(given(unsafe { System.alloc(layout) }, layout.size()), layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        afford(layout.size());
        in_large_pages(given(unsafe { System.alloc_zeroed(layout) }, layout.size()), layout.size())
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        afford(new_size.saturating_sub(layout.size()));
        in_large_pages(given(unsafe { System.realloc(pointer, layout, new_size) }, new_size), new_size)
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn afford(size: usize) {
    if size >= LARGE && size as u64 > memory::left() {
        no_memory(size);
    }
}

fn given(pointer: *mut u8, size: usize) -> *mut u8 {
    if pointer.is_null() {
        no_memory(size);
    }
    pointer
}

/// Requests large pages inside a large block, on systems that provide them on request. Arrays are allocated and
/// freed often, and most of the cost is one page fault per page.
#[cfg(target_os = "linux")]
fn in_large_pages(pointer: *mut u8, size: usize) -> *mut u8 {
    const PAGE: usize = 1 << 21;
    let first = pointer.align_offset(PAGE);
    if let Some(inside) = size.checked_sub(first).filter(|inside| *inside >= PAGE) {
        // SAFETY: the range lies within the block, and the request changes only how it is mapped, not its content.
        _ = unsafe {
            rustix::mm::madvise(
                pointer.wrapping_add(first).cast(),
                inside / PAGE * PAGE,
                rustix::mm::Advice::LinuxHugepage,
            )
        };
    }
    pointer
}

#[cfg(not(target_os = "linux"))]
fn in_large_pages(pointer: *mut u8, _: usize) -> *mut u8 {
    pointer
}

#[cold]
fn no_memory(size: usize) -> ! {
    let mut line = Cursor::new([0; 200]);
    _ = writeln!(
        line,
        "error: out of memory: {size} more bytes are needed than available or allowed (ulimit -v, container limit); \
         allow more memory, or reduce the request"
    );
    let end = line.position() as usize;
    end_with(&line.get_ref()[..end])
}

/// Makes the allocator reuse freed memory of arrays. Otherwise it would return the memory to the system, which
/// clears it each time. This saves a fourteenth of a check's time. Call it once, at the program's start.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const LARGEST: i32 = 1 << 30;
        const KEPT: i32 = 1 << 28;
        // SAFETY: both calls set a number of the allocator before there are threads; an unsupported setting changes
        // nothing.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
    }
}

/// Ends the program with a message if a mapped file is truncated. Call it once, at the program's start.
pub fn watch_mapped_files() {
    #[cfg(unix)]
    {
        let cut_short = || {
            end_with(
                b"error: a file was truncated while it was read, or its disk failed (SIGBUS); make sure that nothing writes to \
                  the model and the dumps, and run again\n",
            )
        };
        // SAFETY: the handler writes one text by one system call and ends the process. Both are async-signal-safe, and
        // the interrupted code never continues.
        _ = unsafe { signal_hook::low_level::register(signal_hook::consts::SIGBUS, cut_short) };
    }
}

/// Writes a message and exits without cleanup. The next run removes unfinished files.
#[cfg(unix)]
fn end_with(line: &[u8]) -> ! {
    _ = rustix::io::write(rustix::stdio::stderr(), line);
    signal_hook::low_level::exit(2)
}

#[cfg(not(unix))]
fn end_with(_: &[u8]) -> ! {
    std::process::abort()
}
