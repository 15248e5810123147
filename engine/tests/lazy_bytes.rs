//! Bytes that are elsewhere: nobody sees any that did not come.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use xcheck_engine::lazy_bytes::{self, ByteSource, LazyBytes, UnavailableBytes};

/// A file whose bytes from `end` on cannot be had.
#[derive(Default)]
struct Far {
    end: usize,
    asked: Mutex<Vec<Range<usize>>>,
    calls: AtomicUsize,
}

impl ByteSource for Far {
    fn bring(&self, ranges: &[Range<usize>]) -> Result<(), UnavailableBytes> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.asked.lock().expect("nobody panics").extend_from_slice(ranges);
        match ranges.iter().all(|range| range.end <= self.end) {
            true => Ok(()),
            false => Err(UnavailableBytes { place: "far".into(), problem: "it is too far".into() }),
        }
    }

    fn pin(&self) -> &str {
        "ETag \"far\""
    }
}

fn far(end: usize) -> (Arc<Far>, LazyBytes) {
    let file = Arc::new(Far { end, ..Far::default() });
    let bytes = Bytes::from((0..100).collect::<Vec<u8>>());
    (file.clone(), LazyBytes::of(file, bytes))
}

fn asked(file: &Far) -> Vec<(usize, usize)> {
    let ranges = std::mem::take(&mut *file.asked.lock().expect("nobody panics"));
    ranges.into_iter().map(|range| (range.start, range.end)).collect()
}

#[test]
fn every_way_to_the_bytes_asks_for_them_and_lengths_do_not() {
    let (file, parts) = far(100);
    assert_eq!((parts.len(), parts.is_empty(), parts.slice(10..20).len()), (100, false, 10));
    assert!(asked(&file).is_empty());
    let slice = parts.slice(10..60).slice(5..25);
    assert_eq!((slice.at(2..4), asked(&file)), (&[17, 18][..], vec![(17, 19)]));
    assert_eq!((slice.first(3).len(), asked(&file)), (3, vec![(15, 18)]));
    assert_eq!((slice[0], asked(&file)), (15, vec![(15, 35)]));
    assert_eq!((slice.whole().len(), asked(&file)), (20, vec![(15, 35)]));
    assert_eq!((slice == slice.clone(), asked(&file)), (true, vec![(15, 35), (15, 35)]));
    assert_eq!((slice.at(3..3).len(), asked(&file)), (0, vec![]));
    lazy_bytes::bring([&slice, &parts.slice(90..100)]).expect("they can be had");
    assert_eq!(asked(&file), [(15, 35), (90, 100)]);
    assert_eq!(file.calls.load(Ordering::Relaxed), 7, "both in one go");
}

#[test]
fn bytes_that_cannot_be_had_end_the_work_from_any_thread_with_their_own_words() {
    let (_, parts) = far(50);
    let sum = |end: usize| {
        lazy_bytes::caught(|| {
            (0..end).into_par_iter().map(|at| u64::from(parts.at(at..at + 1)[0])).sum::<u64>()
        })
    };
    assert_eq!(sum(50), Ok(49 * 50 / 2));
    let refused = sum(51).expect_err("the last cannot be had");
    assert_eq!(refused.to_string(), "far: it is too far");
}

#[test]
#[should_panic(expected = "a bug")]
fn a_bug_is_no_refusal() {
    _ = lazy_bytes::caught(|| panic!("a bug"));
}

#[test]
fn what_has_a_hash_comes_whole_once_and_is_held_against_it() {
    let sha256 =
        |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (file, parts) = far(100);
    let tensor = parts.slice(20..40);
    let right = tensor.hashed(&sha256(&(20..40).collect::<Vec<u8>>()), "tensor 'q'".into());
    assert_eq!(right.at(3..5), [23, 24]);
    assert_eq!(right.slice(5..9).at(1..2), [26]);
    assert_eq!(asked(&file), vec![(20, 40)], "once, and whole");
    let wrong = tensor.hashed(&sha256(b"other"), "tensor 'q'".into());
    let refused = lazy_bytes::caught(|| wrong.at(3..5).len()).expect_err("another content");
    assert!(refused.to_string().starts_with("tensor 'q': its SHA-256 is "), "{refused}");
    let here = LazyBytes::from(vec![1, 2, 3]).hashed("no hash", "tensor 'k'".into());
    assert_eq!((&here[..], here.pin()), (&[1, 2, 3][..], None));
}
