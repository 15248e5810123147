//! Parallel loops that use one thread for small work. Waking a thread costs more than a few microseconds of work.
//!
//! Callers state roughly how many nanoseconds an item takes. The distribution over threads changes no result.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::iter::{ParallelIterator, split};

/// Minimum work of a thread in nanoseconds. With a limit four times as high, threads fall asleep between the
/// operations of a token, and models of 135M parameters decode a fifth slower.
const WORTH: usize = 4_000;

/// Approximate number of multiply-adds in a nanosecond.
pub(crate) const PRODUCTS: usize = 8;

/// Returns `f` of every index below `len`, in order. Each call takes about `nanoseconds`.
pub fn map<R: Send>(len: usize, nanoseconds: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let least = worth(nanoseconds);
    if is_for_one(len, least) {
        return (0..len).map(f).collect();
    }
    let made = Mutex::new(Vec::new());
    spread(0..len, least, &|part: Range<usize>| {
        let (first, results) = (part.start, part.map(&f).collect::<Vec<R>>());
        made.lock().unwrap_or_else(PoisonError::into_inner).push((first, results));
    });
    let mut made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
    made.sort_unstable_by_key(|(first, _)| *first);
    made.into_iter().flat_map(|(_, results)| results).collect()
}

/// Returns the result of `f` at the first index where it is `Some`.
pub fn first<R: Send>(len: usize, nanoseconds: usize, f: impl Fn(usize) -> Option<R> + Sync) -> Option<R> {
    // Split into pieces that are large enough for a thread, and cover every index.
    let least = worth(nanoseconds);
    let part = |part: usize| (part * least..len.min((part + 1) * least)).find_map(&f);
    map(len.div_ceil(least), WORTH, part).into_iter().flatten().next()
}

/// Calls `f(room, index, item)` for every item. Each call takes about `nanoseconds`. `room` is scratch memory that
/// is reused for many items.
pub fn each<T: Send, R>(
    items: Vec<T>,
    nanoseconds: usize,
    room: impl Fn() -> R + Sync,
    f: impl Fn(&mut R, usize, T) + Sync,
) {
    spread(IndexedItems { first: 0, items }, worth(nanoseconds), &|run: IndexedItems<Vec<T>>| {
        let mut room = room();
        run.items.into_iter().zip(run.first..).for_each(|(item, index)| f(&mut room, index, item));
    });
}

/// Calls `f(index, chunk)` for every chunk of `len` values. Each call takes about `nanoseconds`.
///
/// # Panics
/// If `len` is 0.
pub fn chunks<T: Send>(data: &mut [T], len: usize, nanoseconds: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let items = Chunks { data, len };
    spread(IndexedItems { first: 0, items }, worth(nanoseconds), &|run: IndexedItems<Chunks<T>>| {
        run.items.data.chunks_mut(len).zip(run.first..).for_each(|(chunk, index)| f(index, chunk));
    });
}

/// Returns the minimum number of items for a thread.
fn worth(nanoseconds: usize) -> usize {
    WORTH.div_ceil(nanoseconds.max(1))
}

/// Returns true if the work should stay on one thread: it is too small to share, or there is only one thread.
fn is_for_one(len: usize, least: usize) -> bool {
    len < 2 * least || rayon::current_num_threads() == 1
}

/// Work that can be divided in two.
trait WorkItems: Send + Sized {
    /// Returns the number of work items.
    fn len(&self) -> usize;

    /// Splits the work at an index.
    fn cut(self, at: usize) -> (Self, Self);
}

/// Runs `f` on parts of at least `least` items, on any thread. This function is not generic over the operation,
/// because rayon's iterators, compiled for each operation, took a sixth of this package's code.
fn spread<P: WorkItems>(whole: P, least: usize, f: &(dyn Fn(P) + Sync)) {
    if is_for_one(whole.len(), least) {
        return f(whole);
    }
    let halves = |part: P| match part.len() {
        len if len < 2 * least => (part, None),
        len => {
            let (before, behind) = part.cut(len / 2);
            (before, Some(behind))
        }
    };
    split(whole, halves).for_each(f);
}

impl WorkItems for Range<usize> {
    fn len(&self) -> usize {
        self.end - self.start
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let middle = self.start + at;
        (self.start..middle, middle..self.end)
    }
}

/// Consecutive items, and the index of the first.
struct IndexedItems<I> {
    first: usize,
    items: I,
}

impl<I: WorkItems> WorkItems for IndexedItems<I> {
    fn len(&self) -> usize {
        self.items.len()
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let (before, behind) = self.items.cut(at);
        (Self { items: before, ..self }, Self { first: self.first + at, items: behind })
    }
}

impl<T: Send> WorkItems for Vec<T> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn cut(mut self, at: usize) -> (Self, Self) {
        let behind = self.split_off(at);
        (self, behind)
    }
}

/// Values in chunks of `len`.
struct Chunks<'d, T> {
    data: &'d mut [T],
    len: usize,
}

impl<T: Send> WorkItems for Chunks<'_, T> {
    fn len(&self) -> usize {
        self.data.len().div_ceil(self.len)
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let (before, behind) = self.data.split_at_mut(at * self.len);
        (Self { data: before, ..self }, Self { data: behind, len: self.len })
    }
}
