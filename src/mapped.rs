//! Files mapped into memory, and giving back the memory that was read.
//!
//! The system keeps what it has read of a mapped file among the memory of the process as long as there is room. Of files
//! that are larger than the memory, or that are read once, that is a burden to everything else on the machine.

use std::sync::{PoisonError, RwLock, Weak};
use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use memmap2::Mmap;

/// Every file that is mapped, so that bytes can be told from others, whose contents would be lost.
static MAPPED: RwLock<Vec<Mapped>> = RwLock::new(Vec::new());

struct Mapped {
    addresses: Range<usize>,
    map: Weak<Mmap>,
}

/// The owner that the bytes of a map share.
struct Owner(Arc<Mmap>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes of a map, of which [`release`] knows.
pub fn shared(map: Mmap) -> Bytes {
    let map = Arc::new(map);
    let first = map.as_ptr() as usize;
    let mapped = Mapped { addresses: first..first + map.len(), map: Arc::downgrade(&map) };
    let mut all = MAPPED.write().unwrap_or_else(PoisonError::into_inner);
    all.retain(|mapped| mapped.map.strong_count() > 0);
    all.push(mapped);
    Bytes::from_owner(Owner(map))
}

/// Gives back the memory of bytes that were read, if they are of a mapped file; whoever reads them again finds them in the
/// file. Of other bytes nothing happens.
pub fn release(bytes: &[u8]) {
    let first = bytes.as_ptr() as usize;
    let all = MAPPED.read().unwrap_or_else(PoisonError::into_inner);
    let found = all.iter().filter(|mapped| mapped.addresses.contains(&first));
    let found =
        found.filter_map(|mapped| Some((mapped.map.upgrade()?, first - mapped.addresses.start))).next();
    drop(all);
    if let Some((map, offset)) = found {
        forget(&map, offset, bytes.len().min(map.len() - offset));
    }
}

#[cfg(unix)]
fn forget(map: &Mmap, offset: usize, len: usize) {
    // SAFETY: the map is of a file and read-only, so that its pages hold what the file holds; forgotten, they are read
    // from it again. That they may be given up is advice: where the system refuses it, they stay.
    let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len) };
}

#[cfg(not(unix))]
fn forget(_map: &Mmap, _offset: usize, _len: usize) {}
