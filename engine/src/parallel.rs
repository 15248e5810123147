//! Work for several threads, where it is worth waking them: who takes turns with a sleeping thread over a few microseconds of
//! work spends more on turns than on work.
//!
//! How long an item takes is said by the caller, in nanoseconds, roughly. Which thread does what changes no result.

use rayon::prelude::*;

/// Nanoseconds of work that a thread takes at least. With four times as many, threads fall asleep between the operations of a
/// token, and models of 135M parameters decode a fifth slower.
const WORTH: usize = 4_000;

/// Products that are made and added up in a nanosecond.
pub const PRODUCTS: usize = 8;

/// `f` of every index below `len`, in order, where each takes so many nanoseconds.
pub fn map<R: Send>(len: usize, nanoseconds: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    match worth(nanoseconds) {
        least if len < 2 * least => (0..len).map(f).collect(),
        least => (0..len).into_par_iter().with_min_len(least).map(&f).collect(),
    }
}

/// What `f` finds at the first index where it finds something.
pub fn first<R: Send>(len: usize, nanoseconds: usize, f: impl Fn(usize) -> Option<R> + Sync) -> Option<R> {
    match worth(nanoseconds) {
        least if len < 2 * least => (0..len).find_map(f),
        least => (0..len).into_par_iter().with_min_len(least).find_map_first(&f),
    }
}

/// `f(room, index, item)` of every item, where each takes so many nanoseconds. A room serves many items.
pub fn each<T: Send, R>(
    items: Vec<T>,
    nanoseconds: usize,
    room: impl Fn() -> R + Sync,
    f: impl Fn(&mut R, usize, T) + Sync,
) {
    match worth(nanoseconds) {
        least if items.len() < 2 * least => {
            let mut room = room();
            items.into_iter().enumerate().for_each(|(index, item)| f(&mut room, index, item));
        }
        least => {
            let items = items.into_par_iter().enumerate().with_min_len(least);
            items.for_each_init(&room, |room, (index, item)| f(room, index, item));
        }
    }
}

/// `f(index, chunk)` of every `len` values, where each chunk takes so many nanoseconds.
///
/// # Panics
/// If `len` is 0.
pub fn chunks<T: Send>(data: &mut [T], len: usize, nanoseconds: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    each(data.chunks_mut(len).collect(), nanoseconds, || (), |(), index, chunk| f(index, chunk));
}

/// Items that a thread should take at least.
fn worth(nanoseconds: usize) -> usize {
    WORTH.div_ceil(nanoseconds.max(1))
}
