//! Tests with hundreds of cases go through a share of them, and with `XCHECK_EVERY_CASE=1` through every one.

/// One case of `n`, spread over all of them.
pub fn one_of<T>(n: usize, cases: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    cases.into_iter().step_by(if is_every_case_asked_for() { 1 } else { n })
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
