//! Bytes of a file. Reading a range of a remote file downloads it on demand.
//!
//! A remote file is a memory map of its full length, of which only downloaded ranges may be read. All reads go
//! through [`LazyBytes::at`], which downloads missing ranges. Matrix products cannot return download errors. A
//! failed download therefore unwinds the stack to [`caught`].

use std::any::Any;
use std::fmt;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::slice;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use memmap2::Mmap;
use sha2::{Digest, Sha256};

/// Reason why bytes are unavailable, printed as one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnavailableBytes {
    /// The file's name in messages.
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
    /// Mapped local file, whose pages the system may drop and read again.
    Map(#[cfg_attr(not(unix), expect(dead_code))] Arc<Mmap>),
    /// Remote file, and the offset of the bytes in it.
    Elsewhere(Arc<dyn ByteSource>, usize),
}

/// A shared memory map, as an owner of bytes.
struct MapOwner(Arc<Mmap>);

impl AsRef<[u8]> for MapOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Minimum size of a file whose memory is released.
#[cfg(unix)]
const WORTH: usize = 16 << 20;

impl LazyBytes {
    /// Creates the bytes of a local file, mapped read-only.
    pub(crate) fn mapped(map: Mmap) -> Self {
        let map = Arc::new(map);
        Self { bytes: Bytes::from_owner(MapOwner(map.clone())), home: ByteStorage::Map(map) }
    }

    /// Releases the memory of a mapped file. Later reads fetch the bytes from the file again. Otherwise the system
    /// would keep all pages while there is memory, which slows down files that are larger than the memory or read only
    /// once. Files below 16 MiB are kept, because dropping and reloading their pages takes longer than most uses.
    #[expect(unsafe_code)]
    pub fn release(&self) {
        #[cfg(unix)]
        if let ByteStorage::Map(map) = &self.home
            && map.len() >= WORTH
        {
            let offset = self.bytes.as_ptr() as usize - map.as_ptr() as usize;
            // SAFETY: the map is a read-only file map, so dropped pages have the same content when they are read again.
            // The call is advice; systems may ignore it.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, self.bytes.len())
            };
        }
    }

    /// Creates the bytes of a remote file. Bytes that are not downloaded are never read.
    pub fn of(origin: Arc<dyn ByteSource>, bytes: Bytes) -> Self {
        Self { bytes, home: ByteStorage::Elsewhere(origin, 0) }
    }

    /// Returns the number of bytes, downloaded or not. If this were private, other packages would silently call the
    /// slice's `len` instead, which downloads all bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns a range of the bytes without reading it.
    ///
    /// # Panics
    /// If the range exceeds the bytes.
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
    /// If the range exceeds the bytes. Unwinds to [`caught`] if the download fails.
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

    /// Returns the first `most` bytes, or all bytes if there are fewer.
    pub fn first(&self, most: usize) -> &[u8] {
        self.at(0..most.min(self.len()))
    }

    /// Downloads and returns all bytes.
    pub fn whole(&self) -> Bytes {
        self.at(0..self.len());
        self.bytes.clone()
    }

    /// Returns bytes that are checked against a hash when they are downloaded. Messages call them `what`. Local bytes
    /// are not checked.
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

/// A range with a known hash. It is downloaded as a whole and checked once.
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

/// Downloads several parts at once; neighbouring parts in one request.
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

/// Unwinds to [`caught`] with an error.
pub(crate) fn refuse(refused: UnavailableBytes) -> ! {
    resume_unwind(Box::new(refused))
}

/// Returns the result of `work`, or an error if `work` needed bytes that are not available.
///
/// # Errors
/// If bytes were unavailable.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, UnavailableBytes> {
    // Unwinding drops everything that was being computed, so no half-finished state is read.
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
