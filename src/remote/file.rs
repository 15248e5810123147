//! A remote file: which byte ranges are requested, how often, and over how many connections.

use std::collections::VecDeque;
use std::io::Read;
use std::ops::Range;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::transport::{RangeResponse, RequestFailure, Transport};
use super::{FileLookup, Url, refused};
use crate::disk_cache::{BLOCK, CachedBlocks, DiskCache};
use crate::error::Result;
use crate::lazy_bytes::{ByteSource, LazyBytes, UnavailableBytes};

/// Maximum size of one request in bytes.
const PIECE: usize = 8 << 20;
/// Maximum number of simultaneous requests per file.
const CONNECTIONS: usize = 8;
/// Number of attempts for each request.
const ATTEMPTS: u32 = 6;
/// Wait before the second attempt; it doubles each time.
const PAUSE: Duration = Duration::from_millis(250);
/// Maximum accepted file length in bytes. Memory is allocated per block, and a server may state any length.
const LONGEST: usize = 1 << 42;
/// Maximum read-ahead in bytes. The read-ahead doubles with each sequential read.
const FURTHEST_AHEAD: usize = 4 << 20;

/// A pinned remote file with its cached blocks.
struct PinnedRemoteFile {
    url: Url,
    transport: Arc<dyn Transport>,
    tag: String,
    /// Version of the content, as reported by the server.
    pin: String,
    /// True if the server supports range requests.
    in_parts: bool,
    blocks: CachedBlocks,
    /// Lock that lets only one thread at a time download. The next thread may then find the blocks it needs.
    reading: Mutex<SequentialRead>,
}

/// State of sequential reading.
#[derive(Default)]
struct SequentialRead {
    end: usize,
    ahead: usize,
}

/// Pins a file, and reads its first block.
pub(super) fn open(transport: &Arc<dyn Transport>, kept: &DiskCache, url: &Url) -> Result<FileLookup> {
    let first = match with_patience(|| transport.get(url, &(0..BLOCK), None)) {
        Ok(answer) => answer,
        Err(RequestFailure::Absent(why)) => return Ok(Err(why)),
        Err(RequestFailure::Final(problem) | RequestFailure::Passing(problem, _)) => {
            return Err(refused(url, &problem));
        }
    };
    if !(1..=LONGEST).contains(&first.total) || first.range.start != 0 {
        return Err(refused(
            url,
            "invalid response: the file is empty or too large, or the data does not start at byte 0",
        ));
    }
    let RangeResponse { total, in_parts, body, .. } = first;
    let (key, about) = key(url, transport.home(), &first.pin, total);
    let blocks = kept.blocks(&key, total, &about)?;
    let file = PinnedRemoteFile {
        url: url.clone(),
        transport: transport.clone(),
        pin: if in_parts {
            first.pin.clone()
        } else {
            format!("{}; whole file: the server does not support range requests", first.pin)
        },
        tag: first.pin,
        in_parts,
        blocks,
        reading: Mutex::default(),
    };
    // Errors are ignored here; the block is requested again when it is needed.
    let start = 0..BLOCK.min(total);
    if let [missing] = file.blocks.missing(slice::from_ref(&start)).as_slice()
        && first.range.end >= missing.end
    {
        file.blocks.reserve(missing.len()).map_err(|problem| refused(url, &problem))?;
        _ = file.take(body, &mut 0, missing.end);
    }
    let bytes = file.blocks.bytes();
    Ok(Ok(LazyBytes::of(Arc::new(file), bytes)))
}

/// Returns the cache key and the description of this content. A strong `ETag` identifies the content regardless of
/// the query. A weak one (`W/`) or a date does not, if the query may choose among files.
fn key(url: &Url, home: &str, pin: &str, total: usize) -> (String, String) {
    let about = format!("{}\n{pin}\n{total} bytes\n", url.shown());
    let mut hash = Sha256::new_with_prefix(&about);
    hash.update(home);
    if !pin.starts_with("ETag \"") {
        hash.update(url.query());
    }
    (hex::encode(hash.finalize()), about)
}

impl ByteSource for PinnedRemoteFile {
    fn bring(&self, ranges: &[Range<usize>]) -> Result<(), UnavailableBytes> {
        if ranges.iter().all(|range| self.blocks.are_here(range)) {
            return Ok(());
        }
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let mut runs = self.blocks.missing(ranges);
        if !self.in_parts && !runs.is_empty() {
            runs.clear();
            runs.push(0..self.blocks.bytes().len());
        }
        if let [run] = runs.as_mut_slice() {
            let ahead = run.end..reading.further(run, self.blocks.bytes().len());
            let missing = self.blocks.missing(slice::from_ref(&ahead));
            run.end = missing.first().filter(|more| more.start == run.end).map_or(run.end, |more| more.end);
        }
        let bytes = runs.iter().map(Range::len).sum();
        self.blocks.reserve(bytes).map_err(|problem| self.refused(problem))?;
        self.fetch(runs)
    }

    fn pin(&self) -> &str {
        &self.pin
    }
}

impl SequentialRead {
    /// Returns the end of the range to read. Includes read-ahead if reading is sequential.
    fn further(&mut self, run: &Range<usize>, len: usize) -> usize {
        let goes_on = run.start == self.end && run.len() <= BLOCK;
        self.ahead = if goes_on { (2 * self.ahead).clamp(BLOCK, FURTHEST_AHEAD) } else { 0 };
        self.end = run.end.saturating_add(self.ahead).min(len);
        self.end
    }
}

impl PinnedRemoteFile {
    /// Downloads these ranges, several pieces at a time. Stops at the first error.
    fn fetch(&self, runs: Vec<Range<usize>>) -> Result<(), UnavailableBytes> {
        let size = if self.in_parts { PIECE } else { usize::MAX };
        let pieces = |run: Range<usize>| {
            run.clone()
                .step_by(size.min(run.len()))
                .map(move |start| start..run.end.min(start.saturating_add(size)))
        };
        let pieces: VecDeque<_> = runs.into_iter().flat_map(pieces).collect();
        let (workers, pieces) = (CONNECTIONS.min(pieces.len()), Mutex::new(pieces));
        let work = || {
            while let Some(piece) = next(&pieces) {
                self.piece(piece).inspect_err(|_| lock(&pieces).clear())?;
            }
            Ok(())
        };
        if workers == 1 {
            return work();
        }
        thread::scope(|scope| {
            let others: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            others.into_iter().try_for_each(|worker| worker.join().expect("the worker does not panic"))
        })
    }

    /// Downloads a range. It is retried as long as each attempt transfers some bytes.
    fn piece(&self, piece: Range<usize>) -> Result<(), UnavailableBytes> {
        let (mut at, mut furthest) = (piece.start, piece.start);
        while at < piece.end {
            let came = with_patience(|| {
                let came = self.once(&mut at, piece.end);
                let is_further = at > furthest;
                furthest = furthest.max(at);
                came.or_else(|failure| match failure {
                    RequestFailure::Passing(..) if is_further => Ok(()),
                    failure => Err(failure),
                })
            });
            came.map_err(|failure| match failure {
                RequestFailure::Passing(problem, _) => self.refused(format!(
                    "{problem}, {ATTEMPTS} times in a row; try again, downloaded data is kept"
                )),
                RequestFailure::Absent(problem) | RequestFailure::Final(problem) => self.refused(problem),
            })?;
        }
        Ok(())
    }

    /// Sends one request for the bytes that start at `at`.
    fn once(&self, at: &mut usize, end: usize) -> Result<(), RequestFailure> {
        let answer = self.transport.get(&self.url, &(*at..end), Some(&self.tag))?;
        let total = self.blocks.bytes().len();
        if answer.pin != self.tag || answer.total != total {
            return Err(RequestFailure::Final(format!(
                "the file changed while it was being read: it was {} of {total} bytes, and is now {} of {}; run again",
                self.tag, answer.pin, answer.total
            )));
        }
        if answer.in_parts != self.in_parts || self.in_parts && answer.range.start != *at {
            let problem =
                "the server sent another byte range than requested; download the file and give its path";
            return Err(RequestFailure::Final(problem.into()));
        }
        *at = answer.range.start;
        self.take(answer.body, at, end.min(answer.range.end))
    }

    /// Reads blocks from `at` (a block boundary) to `end`, and stores each complete block.
    fn take(&self, mut body: impl Read, at: &mut usize, end: usize) -> Result<(), RequestFailure> {
        let mut buffer = vec![0; BLOCK];
        let total = self.blocks.bytes().len();
        while *at < end {
            let block = &mut buffer[..BLOCK.min(total - *at)];
            body.read_exact(block).map_err(|error| {
                RequestFailure::Passing(format!("the connection broke at byte {at} ({error})"), None)
            })?;
            self.blocks.put(*at, block).map_err(|error| RequestFailure::Final(error.to_string()))?;
            *at += block.len();
        }
        Ok(())
    }

    fn refused(&self, problem: String) -> UnavailableBytes {
        UnavailableBytes { place: self.url.shown().to_owned(), problem }
    }
}

/// Repeats a request after temporary failures.
fn with_patience<T>(mut ask: impl FnMut() -> Result<T, RequestFailure>) -> Result<T, RequestFailure> {
    let mut pause = PAUSE;
    for _ in 1..ATTEMPTS {
        match ask() {
            Err(RequestFailure::Passing(_, wait)) => thread::sleep(wait.unwrap_or(pause)),
            settled => return settled,
        }
        pause *= 2;
    }
    ask()
}

fn next(pieces: &Mutex<VecDeque<Range<usize>>>) -> Option<Range<usize>> {
    lock(pieces).pop_front()
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
