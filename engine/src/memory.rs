//! Available memory, checked before much of it is allocated.
//!
//! Rule (`docs/explanation/robustness.md`): a reader takes at most a fixed multiple of its input's size. The memory of
//! a run is estimated from the request and compared with `left` before the run starts.

use std::fmt::Display;
use std::fs;

use crate::error::{Error, Result};

/// Largest compression ratio that real files have.
const MOST_SHRUNK: u64 = 64;
/// Unpacked size up to which the compression ratio of an archive is not limited.
const SMALL: u64 = 1 << 24;

/// Returns the largest accepted unpacked size of an archive of `len` bytes. The size that the archive itself states
/// is not trusted.
pub fn unpacked(len: u64) -> u64 {
    len.saturating_mul(MOST_SHRUNK).saturating_add(SMALL)
}

/// Checks that `bytes` of memory are available for `what`.
///
/// # Errors
/// [`Error::NoMemory`] if they are not.
pub fn check(what: impl Display, bytes: u128) -> Result<()> {
    /// Size up to which no check is made.
    const LITTLE: u128 = 1 << 26;
    if bytes < LITTLE {
        return Ok(());
    }
    match left() {
        left if bytes <= left.into() => Ok(()),
        left => Err(Error::NoMemory {
            what: what.to_string(),
            needed: u64::try_from(bytes).unwrap_or(u64::MAX),
            left,
        }),
    }
}

/// Returns the number of bytes that this process can still allocate: the minimum over the machine, the container,
/// and the process limit (`ulimit -v`). If none of them is known, returns the size of the address space.
pub(crate) fn left() -> u64 {
    [of_machine(), of_container(), of_limit()].into_iter().flatten().min().unwrap_or(isize::MAX as u64)
}

fn of_machine() -> Option<u64> {
    kilobytes("/proc/meminfo", "MemAvailable:")
}

/// Returns the free memory of the container. The container counts file pages as used, although they are freed on
/// demand.
fn of_container() -> Option<u64> {
    let number = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let files = || {
        let text = fs::read_to_string("/sys/fs/cgroup/memory.stat").ok()?;
        text.lines().find_map(|line| line.strip_prefix("file ")?.trim().parse().ok())
    };
    let most = number("/sys/fs/cgroup/memory.max")?;
    let used = number("/sys/fs/cgroup/memory.current")?.saturating_sub(files().unwrap_or(0));
    Some(most.saturating_sub(used))
}

#[cfg(unix)]
fn of_limit() -> Option<u64> {
    let most = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    Some(most.saturating_sub(kilobytes("/proc/self/status", "VmSize:")?))
}

#[cfg(not(unix))]
fn of_limit() -> Option<u64> {
    None
}

/// Reads a number from a system file such as `MemAvailable:   123 kB`.
fn kilobytes(file: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let figure = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(figure.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.saturating_mul(1024))
}
