//! Bytes of a file. Reading a range of a remote file downloads it on demand.
//!
//! A remote file is a map of its full length, of which only downloaded ranges may be read: all reads go through
//! [`LazyBytes::at`], which downloads what is missing. If a download fails in the middle of a matrix product, whose callers
//! know nothing of files, the error unwinds to [`caught`].

use std::any::Any;
use std::fmt;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::slice;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use memmap2::Mmap;
use sha2::{Digest, Sha256};

/// Reason why bytes are unavailable: one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnavailableBytes {
    /// The file, as messages name it.
    pub place: String,
    /// Problem and remedy.
    pub problem: String,
}

impl fmt::Display for UnavailableBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl std::error::Error for UnavailableBytes {}

/// A remote file.
pub trait ByteSource: Send + Sync {
    /// Downloads the missing bytes of these ranges.
    ///
    /// # Errors
    /// If the bytes are unavailable, or the file has changed since other bytes were downloaded.
    fn bring(&self, ranges: &[Range<usize>]) -> Result<(), UnavailableBytes>;

    /// Returns the version identifier of the file, such as `ETag "33a6"`.
    fn pin(&self) -> &str;
}

/// Bytes of a file. Clones and slices share them.
#[derive(Clone)]
pub struct LazyBytes {
    bytes: Bytes,
    home: ByteStorage,
}

/// Storage of the bytes.
#[derive(Clone)]
enum ByteStorage {
    Memory,
    /// A file of this machine, which the system may forget and read again where it takes such advice.
    Map(#[cfg_attr(not(unix), expect(dead_code))] Arc<Mmap>),
    /// A remote file, and the offset of the bytes in it.
    Elsewhere(Arc<dyn ByteSource>, usize),
}

/// A shared memory map, as an owner of bytes.
struct MapOwner(Arc<Mmap>);

impl AsRef<[u8]> for MapOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes of a file whose memory is worth giving back.
#[cfg(unix)]
const WORTH: usize = 16 << 20;

impl LazyBytes {
    /// Creates the bytes of a local file, mapped read-only.
    pub fn mapped(map: Mmap) -> Self {
        let map = Arc::new(map);
        Self { bytes: Bytes::from_owner(MapOwner(map.clone())), home: ByteStorage::Map(map) }
    }

    /// Gives back the memory of what was read of a mapped file; whoever looks again finds it in the file. The system keeps
    /// what it has read for as long as there is room, which is a burden where a file is larger than the memory or read once.
    /// A file of less than 16 MiB stays: to forget its pages and find them again takes longer than most of what is done with it.
    #[expect(unsafe_code)]
    pub fn release(&self) {
        #[cfg(unix)]
        if let ByteStorage::Map(map) = &self.home
            && map.len() >= WORTH
        {
            let offset = self.bytes.as_ptr() as usize - map.as_ptr() as usize;
            // SAFETY: the map is of a file and read-only: pages that are forgotten hold the same when they are read again.
            // It is advice; where the system does not follow it, they stay.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, self.bytes.len())
            };
        }
    }

    /// Creates the bytes of a remote file; bytes that are not downloaded are never read.
    pub fn of(origin: Arc<dyn ByteSource>, bytes: Bytes) -> Self {
        Self { bytes, home: ByteStorage::Elsewhere(origin, 0) }
    }

    /// Returns the number of bytes, downloaded or not.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Some of them, without looking at them.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let home = match &self.home {
            ByteStorage::Elsewhere(file, start) => ByteStorage::Elsewhere(file.clone(), start + range.start),
            here => here.clone(),
        };
        Self { bytes: self.bytes.slice(range), home }
    }

    /// Returns a range of the bytes, downloaded on demand.
    ///
    /// # Panics
    /// If there are not as many. Unwinds to [`caught`] if they cannot be had.
    pub fn at(&self, range: Range<usize>) -> &[u8] {
        let bytes = &self.bytes[range.clone()];
        if let ByteStorage::Elsewhere(file, start) = &self.home
            && !range.is_empty()
        {
            let wanted = start + range.start..start + range.end;
            file.bring(slice::from_ref(&wanted)).unwrap_or_else(|refused| refuse(refused));
        }
        bytes
    }

    /// Returns the first `most` bytes, or all if there are fewer.
    pub fn first(&self, most: usize) -> &[u8] {
        self.at(0..most.min(self.len()))
    }

    /// Downloads and returns all bytes.
    pub fn whole(&self) -> Bytes {
        self.at(0..self.len());
        self.bytes.clone()
    }

    /// Returns bytes that are compared with a hash when they are downloaded; `what` names them in messages. Local
    /// bytes are not checked.
    pub fn hashed(&self, sha256: &str, what: String) -> Self {
        let Some(pin) = self.pin() else { return self.clone() };
        let pin = format!("{pin}; each tensor is checked against its SHA-256");
        let (parts, sha256) = (self.clone(), sha256.to_owned());
        let (is_sound, one_at_a_time) = (OnceLock::new(), Mutex::default());
        Self::of(
            Arc::new(HashedRange { parts, sha256, what, pin, is_sound, one_at_a_time }),
            self.bytes.clone(),
        )
    }

    /// Returns the version identifier of a remote file; `None` for a local one.
    pub fn pin(&self) -> Option<&str> {
        match &self.home {
            ByteStorage::Elsewhere(file, _) => Some(file.pin()),
            ByteStorage::Memory | ByteStorage::Map(_) => None,
        }
    }
}

/// A range with a known hash: it is downloaded as a whole and checked once.
struct HashedRange {
    parts: LazyBytes,
    sha256: String,
    what: String,
    pin: String,
    is_sound: OnceLock<()>,
    one_at_a_time: Mutex<()>,
}

impl ByteSource for HashedRange {
    fn bring(&self, _: &[Range<usize>]) -> Result<(), UnavailableBytes> {
        if self.is_sound.get().is_some() {
            return Ok(());
        }
        let _turn = self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        bring([&self.parts])?;
        let found = hex::encode(Sha256::digest(&self.parts.bytes));
        if found == self.sha256 {
            _ = self.is_sound.set(());
            return Ok(());
        }
        let problem =
            format!("its SHA-256 is {found}, expected {}; the data or the hash is damaged", self.sha256);
        Err(UnavailableBytes { place: self.what.clone(), problem })
    }

    fn pin(&self) -> &str {
        &self.pin
    }
}

/// Brings all of them at once: neighbours in one go.
///
/// # Errors
/// If the bytes are unavailable.
pub fn bring<'p>(parts: impl IntoIterator<Item = &'p LazyBytes>) -> Result<(), UnavailableBytes> {
    let mut wanted: Vec<(&Arc<dyn ByteSource>, Vec<_>)> = Vec::new();
    for part in parts {
        let ByteStorage::Elsewhere(file, start) = &part.home else { continue };
        let range = *start..start + part.len();
        match wanted.iter_mut().find(|(known, _)| Arc::ptr_eq(known, file)) {
            Some((_, ranges)) => ranges.push(range),
            None => wanted.push((file, vec![range])),
        }
    }
    wanted.iter().try_for_each(|(file, ranges)| file.bring(ranges))
}

/// Gives up what is being done, up to [`caught`].
pub fn refuse(refused: UnavailableBytes) -> ! {
    resume_unwind(Box::new(refused))
}

/// Returns the result of `work`, or the refusal if it needed unavailable bytes.
///
/// # Errors
/// The refusal.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, UnavailableBytes> {
    // What was being computed is dropped; nothing of it is looked at any more.
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload: Box<dyn Any + Send>| {
        match payload.downcast::<UnavailableBytes>() {
            Ok(refused) => *refused,
            Err(bug) => resume_unwind(bug),
        }
    })
}

/// Dereferences to all bytes; use [`LazyBytes::at`] to download fewer.
impl Deref for LazyBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.at(0..self.len())
    }
}

impl fmt::Debug for LazyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl PartialEq for LazyBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<B: Into<Bytes>> From<B> for LazyBytes {
    fn from(bytes: B) -> Self {
        Self { bytes: bytes.into(), home: ByteStorage::Memory }
    }
}
