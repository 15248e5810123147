//! Size limit of the cache for remote files: the least recently used file is evicted first.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Size of a block, which is downloaded, stored and verified as a unit.
pub(crate) const BLOCK: usize = 1 << 16;
/// Name of the file with the checksums of the blocks.
pub(super) const SUMS: &str = "sums";

/// Space that the cached blocks of all files share.
#[derive(Debug)]
pub(super) struct CacheSpace {
    folder: Option<PathBuf>,
    limit: u64,
    /// Bytes in use, as far as this process knows; `None` before the first count.
    taken: Mutex<Option<u64>>,
}

/// Cached blocks of one file.
struct CacheEntry {
    folder: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl CacheSpace {
    pub(crate) fn new(folder: Option<PathBuf>, limit: u64) -> Self {
        Self { folder, limit, taken: Mutex::new(None) }
    }

    /// Returns the folder of the blocks; `None` if the cache is off.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Frees space for `bytes` more.
    ///
    /// # Errors
    /// If files in use take all of the space; the message says what to do.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), String> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let known = taken.unwrap_or_else(|| self.entries().iter().map(|entry| entry.bytes).sum());
        // Without a cache folder, there is nothing to delete.
        let now = match self.folder.is_some() && known.saturating_add(bytes) > self.limit {
            true => self.make_room(bytes), // other processes may have added or deleted blocks
            false => known,
        };
        *taken = Some(now);
        if now.saturating_add(bytes) > self.limit {
            return Err(format!(
                "the cache is full: {} more needed, {} of {} in use; raise XCHECK_CACHE_LIMIT, or read less (--layer)",
                in_words(bytes),
                in_words(now),
                in_words(self.limit)
            ));
        }
        *taken = Some(now + bytes);
        Ok(())
    }

    /// Deletes unused entries, least recently used first, until `bytes` fit. Returns the number of bytes
    /// still in use.
    fn make_room(&self, bytes: u64) -> u64 {
        let mut entries = self.entries();
        entries.sort_by_key(|entry| entry.used);
        let mut taken: u64 = entries.iter().map(|entry| entry.bytes).sum();
        for entry in entries {
            if taken.saturating_add(bytes) <= self.limit {
                break;
            }
            if entry.remove() {
                taken -= entry.bytes;
            }
        }
        taken
    }

    fn entries(&self) -> Vec<CacheEntry> {
        let folders = self.folder.iter().flat_map(fs::read_dir).flatten().flatten();
        folders.filter_map(|folder| CacheEntry::of(folder.path())).collect()
    }
}

impl CacheEntry {
    fn of(folder: PathBuf) -> Option<Self> {
        let sums = folder.join(SUMS);
        let used = fs::metadata(&sums).and_then(|sums| sums.modified()).ok()?;
        let here = fs::read(&sums).ok()?.as_chunks::<4>().0.iter().filter(|sum| **sum != [0; 4]).count();
        Some(Self { folder, bytes: here as u64 * BLOCK as u64, used })
    }

    /// Deletes the entry and returns true, unless a process has it open and holds its lock.
    fn remove(&self) -> bool {
        let Ok(sums) = File::open(self.folder.join(SUMS)) else { return false };
        match sums.try_lock() {
            Err(TryLockError::WouldBlock) => false,
            Ok(()) | Err(TryLockError::Error(_)) => fs::remove_dir_all(&self.folder).is_ok(),
        }
    }
}

fn in_words(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} KB", bytes.div_ceil(1000)),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
