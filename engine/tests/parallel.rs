//! What several threads do is what a loop does: every item once, with its own index, its result in its place.

use std::thread;
use std::time::Duration;

use rayon::ThreadPoolBuilder;
use xcheck_engine::parallel;

/// Lengths, and nanoseconds an item takes: from what one thread does to what is cut down to single items.
const LENGTHS: [usize; 8] = [0, 1, 2, 3, 7, 64, 65, 20_011];
const COSTS: [usize; 4] = [0, 1, 1_000, 1_000_000];

fn in_pools(check: impl Fn(usize, usize) + Sync) {
    for threads in [1, 2, 5] {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let all = || LENGTHS.iter().for_each(|&len| COSTS.iter().for_each(|&cost| check(len, cost)));
        pool.install(all);
    }
}

#[test]
fn results_are_in_order() {
    in_pools(|len, cost| {
        let late_first = |index| {
            if index == 0 {
                thread::sleep(Duration::from_millis(2));
            }
            3 * index
        };
        let expected: Vec<usize> = (0..len).map(|index| 3 * index).collect();
        assert_eq!(parallel::map(len, cost, late_first), expected);
    });
}

#[test]
fn the_first_that_is_found_is_the_first() {
    in_pools(|len, cost| {
        for from in [0, 1, len / 2, len.saturating_sub(1), len] {
            let found = parallel::first(len, cost, |index| (index >= from).then_some(index));
            assert_eq!(found, (from < len).then_some(from), "of {len} from {from}");
        }
    });
}

#[test]
fn every_item_is_met_once_with_its_index() {
    in_pools(|len, cost| {
        let mut met = vec![0; len];
        let items = met.iter_mut().zip(0..).collect::<Vec<(&mut usize, usize)>>();
        parallel::each(
            items,
            cost,
            || 1,
            |one, index, (met, number)| {
                assert_eq!(index, number);
                *met += *one;
            },
        );
        assert_eq!(met, vec![1; len]);
    });
}

#[test]
fn every_chunk_is_met_once_and_the_last_may_be_shorter() {
    in_pools(|len, cost| {
        for width in [1, 3, 64, 100_000] {
            let mut met = vec![0; len];
            parallel::chunks(&mut met, width, cost, |index, chunk| {
                assert_eq!(chunk.len(), width.min(len - index * width));
                chunk.iter_mut().zip(index * width..).for_each(|(met, place)| *met += place + 1);
            });
            assert_eq!(met, (1..=len).collect::<Vec<_>>());
        }
    });
}
