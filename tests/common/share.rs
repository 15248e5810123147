//! Tests with hundreds of cases go through a share of them, and with `XCHECK_EVERY_CASE=1` through every one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;

/// Picks one case from each group of `n` consecutive cases, and one from the rest. The picked index varies between
/// groups, and between the calls that a loop makes; otherwise the same values of a loop would always be left out.
#[track_caller]
pub fn one_of<T>(n: usize, cases: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    const SEED: u64 = 810;
    let seed = SEED.wrapping_add(mixed(earlier_calls(Location::caller())));
    let cases: Vec<T> = cases.into_iter().collect();
    let count = cases.len();
    let is_picked = move |number: usize| {
        let of_group = n.min(count - number / n * n) as u64;
        is_every_case_asked_for()
            || (number % n) as u64 == mixed(seed.wrapping_add((number / n) as u64)) % n as u64 % of_group
    };
    cases.into_iter().enumerate().filter(move |(number, _)| is_picked(*number)).map(|(_, case)| case)
}

/// Returns the number of earlier calls from this place in this thread. Each test has a thread of its own.
fn earlier_calls(place: &'static Location<'static>) -> u64 {
    thread_local! {
        static CALLS: RefCell<HashMap<&'static Location<'static>, u64>> = RefCell::default();
    }
    CALLS.with_borrow_mut(|calls| {
        let calls = calls.entry(place).or_default();
        *calls += 1;
        *calls - 1
    })
}

/// The finaliser of SplitMix64.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// Each with each.
pub fn pairs<A: Clone, B>(
    ones: impl IntoIterator<Item = A>,
    others: impl IntoIterator<Item = B> + Clone,
) -> impl Iterator<Item = (A, B)> {
    ones.into_iter().flat_map(move |one| others.clone().into_iter().map(move |other| (one.clone(), other)))
}

/// How many random cases are a share of `all`, one of `n`.
pub fn share(n: u32, all: u32) -> u32 {
    if is_every_case_asked_for() { all } else { all / n }
}

/// Returns true if `XCHECK_EVERY_CASE` is set.
pub fn is_every_case_asked_for() -> bool {
    std::env::var_os("XCHECK_EVERY_CASE").is_some()
}
