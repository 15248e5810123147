//! Downloaded blocks of a remote file, stored in a sparse file of full length.
//!
//! A second file has a checksum for each block; 0 means that the block is missing. A block is written before its
//! checksum, and verified before its first use. If a process or the machine stops, only blocks in transit are lost,
//! and a damaged block is downloaded again. Several processes may write to the same file, since they write the same
//! bytes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use memmap2::Mmap;

use super::DiskCache;
use super::space::{BLOCK, CacheSpace, SUMS};
use crate::atomic_write::UnfinishedFolder;
use crate::error::{Error, Result};

/// Name of the file with the blocks.
const DATA: &str = "data";

/// Downloaded blocks of one remote file.
pub(crate) struct CachedBlocks {
    path: PathBuf,
    data: File,
    /// Checksum file, locked so that no other process deletes the blocks while they are in use.
    sums: File,
    bytes: Bytes,
    known: Vec<AtomicU32>,
    /// True for each block that was verified or just written.
    sound: Vec<AtomicBool>,
    space: Arc<CacheSpace>,
    /// Temporary folder, deleted with the process, used when the cache is off.
    _folder: Option<UnfinishedFolder>,
}

impl DiskCache {
    /// Opens the blocks of a file of `len` bytes with the cache key `key`. `about` is a description for people who look
    /// into the folder.
    ///
    /// # Errors
    /// If the files can be neither read nor created.
    #[expect(unsafe_code)]
    pub(crate) fn blocks(&self, key: &str, len: usize, about: &str) -> Result<CachedBlocks> {
        let temporary = match self.space.folder() {
            Some(_) => None,
            None => {
                let parent = std::env::temp_dir();
                Some(UnfinishedFolder::within(&parent).map_err(Error::io("write into", &parent))?)
            }
        };
        let folder = temporary
            .as_ref()
            .map(UnfinishedFolder::path)
            .or(self.space.folder())
            .expect("the cache has a folder or a temporary folder");
        let path = folder.join(key);
        let io = |error| Error::io("write", &path)(error);
        let (data, sums) = open(&path, len).map_err(io)?;
        _ = fs::write(path.join("about"), about);
        let known = fs::read(path.join(SUMS)).map_err(io)?;
        let known: Vec<_> = known.as_chunks().0.iter().map(|sum| u32::from_le_bytes(*sum).into()).collect();
        // SAFETY: the map is read-only and outlives every view. Blocks are written to the underlying file,
        // but never after they were verified, and no block is read before: see `CachedBlocks::bytes`.
        let map = unsafe { Mmap::map(&data) }.map_err(io)?;
        let sound = known.iter().map(|_| AtomicBool::new(false)).collect();
        let (bytes, space) = (Bytes::from_owner(map), self.space.clone());
        Ok(CachedBlocks { path, data, sums, bytes, known, sound, space, _folder: temporary })
    }
}

/// Opens and locks both files. A process that frees space may remove them just before the lock is taken, so this
/// tries again.
fn open(path: &Path, len: usize) -> io::Result<(File, File)> {
    let file = |name| {
        let path = path.join(name);
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
    };
    loop {
        fs::create_dir_all(path)?;
        let sums = file(SUMS)?;
        _ = sums.lock_shared(); // without locks, checksums still show which blocks are present
        if !path.join(SUMS).exists() {
            continue;
        }
        let data = file(DATA)?;
        data.set_len(len as u64)?;
        sums.set_len(4 * len.div_ceil(BLOCK) as u64)?;
        _ = sums.set_modified(SystemTime::now()); // time of the last use
        return Ok((data, sums));
    }
}

impl CachedBlocks {
    /// Returns the whole length of the file. Callers may only read blocks that are present.
    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Returns true if all blocks of a byte range are present and valid.
    pub(crate) fn are_here(&self, range: &Range<usize>) -> bool {
        self.sound[blocks_of(range)].iter().all(|sound| sound.load(Ordering::Acquire))
    }

    /// Returns the byte ranges that must be downloaded: runs of whole blocks, in order.
    pub(crate) fn missing(&self, ranges: &[Range<usize>]) -> Vec<Range<usize>> {
        let mut wanted: Vec<usize> = ranges.iter().flat_map(blocks_of).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut runs: Vec<Range<usize>> = Vec::new();
        for block in wanted.into_iter().filter(|&block| !self.is_sound(block)) {
            let place = self.place(block);
            match runs.last_mut() {
                Some(last) if last.end == place.start => last.end = place.end,
                _ => runs.push(place),
            }
        }
        runs
    }

    /// Frees space for blocks that are about to be downloaded.
    ///
    /// # Errors
    /// If there is not enough space.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<(), String> {
        self.space.reserve(bytes.next_multiple_of(BLOCK) as u64)
    }

    /// Stores one downloaded block that begins at `start`; the last block of a file may be shorter.
    ///
    /// # Errors
    /// If the block cannot be written.
    ///
    /// # Panics
    /// If the bytes are not a whole block.
    pub(crate) fn put(&self, start: usize, bytes: &[u8]) -> Result<()> {
        let block = start / BLOCK;
        assert_eq!(start..start + bytes.len(), self.place(block), "a whole block");
        let sum = checksum(bytes);
        write_at(&self.data, start as u64, bytes)
            .and_then(|()| write_at(&self.sums, 4 * block as u64, &sum.to_le_bytes()))
            .map_err(Error::io("write", &self.path))?;
        self.known[block].store(sum, Ordering::Relaxed);
        self.sound[block].store(true, Ordering::Release);
        Ok(())
    }

    fn is_sound(&self, block: usize) -> bool {
        let known = self.known[block].load(Ordering::Relaxed);
        let sound = self.sound[block].load(Ordering::Acquire)
            || known != 0 && checksum(&self.bytes[self.place(block)]) == known;
        self.sound[block].fetch_or(sound, Ordering::AcqRel);
        sound
    }

    fn place(&self, block: usize) -> Range<usize> {
        block * BLOCK..((block + 1) * BLOCK).min(self.bytes.len())
    }
}

fn blocks_of(range: &Range<usize>) -> Range<usize> {
    let end = if range.is_empty() { range.start / BLOCK } else { range.end.div_ceil(BLOCK) };
    range.start / BLOCK..end
}

/// Returns the checksum of a block. It is never 0, since 0 means a missing block.
fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes).max(1)
}

#[cfg(unix)]
fn write_at(file: &File, start: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, start)
}

#[cfg(windows)]
fn write_at(file: &File, mut start: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, start)?;
        (start, bytes) = (start + written as u64, &bytes[written..]);
    }
    Ok(())
}
