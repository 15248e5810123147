//! Tests with hundreds of cases go through a share of them, and with `XCHECK_EVERY_CASE=1` through every one.

/// One case of `n`, spread over all of them.
pub fn one_of<T>(n: u64, cases: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    // Multiples of the golden ratio, modulo 1. Every n-th case would, where an inner loop's length is a multiple of n, leave
    // out the same of its values each time.
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let most = if is_every_case_asked_for() { u64::MAX } else { u64::MAX / n };
    let numbered = (0u64..).zip(cases);
    numbered.filter(move |(number, _)| number.wrapping_mul(GOLDEN) <= most).map(|(_, case)| case)
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

fn is_every_case_asked_for() -> bool {
    std::env::var_os("XCHECK_EVERY_CASE").is_some()
}
