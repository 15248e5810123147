//! Sampling of a token from logits.
//!
//! The order is: temperature, softmax, top-k, top-p, min-p. Each filter renormalises the tokens that the previous
//! filter kept.

use std::cmp::Ordering;

/// Temperature below which the likeliest token is chosen (GPT-2 specification, 8.1).
pub(crate) const GREEDY_BELOW: f32 = 1e-6;

/// Returns the index of the largest logit, the lowest on a tie. NaN is never chosen; if all are NaN, returns 0.
pub fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if logit > logits[best] || (logits[best].is_nan() && !logit.is_nan()) {
            best = index;
        }
    }
    best
}

/// Returns the ids of the `k` largest logits; equal logits by ascending id.
pub fn likeliest(row: &[f32], k: usize) -> Vec<u32> {
    let k = k.min(row.len());
    let order =
        |a: &u32, b: &u32| -> Ordering { row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)) };
    let mut ids: Vec<u32> = (0..row.len() as u32).collect();
    if k > 0 && k < ids.len() {
        ids.select_nth_unstable_by(k - 1, order);
    }
    ids.truncate(k);
    ids.sort_unstable_by(order);
    ids
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Token id.
    pub token: u32,
    /// Probability among the remaining candidates.
    pub probability: f64,
}

/// Returns all tokens, most likely first; equally likely tokens by ascending id.
pub fn candidates(probabilities: &[f32]) -> Vec<Candidate> {
    let indexed = probabilities.iter().enumerate();
    let mut all: Vec<_> =
        indexed.map(|(id, &p)| Candidate { token: id as u32, probability: p.into() }).collect();
    all.sort_unstable_by(|a, b| b.probability.total_cmp(&a.probability).then(a.token.cmp(&b.token)));
    normalised(all)
}

/// Keeps the `k` likeliest tokens.
pub(crate) fn top_k(mut sorted: Vec<Candidate>, k: usize) -> Vec<Candidate> {
    sorted.truncate(k.max(1));
    normalised(sorted)
}

/// Keeps the smallest set of likeliest tokens whose cumulative probability exceeds `p` (Holtzman et al., 2020); all if
/// none does.
pub fn top_p(mut sorted: Vec<Candidate>, p: f64) -> Vec<Candidate> {
    let mut cumulative = 0.0;
    let reaches = |candidate: &Candidate| {
        cumulative += candidate.probability;
        cumulative > p
    };
    let last = sorted.iter().position(reaches);
    sorted.truncate(last.map_or(sorted.len(), |last| last + 1));
    normalised(sorted)
}

/// Keeps the tokens that are at least `p` times as likely as the most likely one.
pub(crate) fn min_p(mut sorted: Vec<Candidate>, p: f64) -> Vec<Candidate> {
    let least = sorted[0].probability * p;
    sorted.retain(|candidate| candidate.probability >= least);
    normalised(sorted)
}

/// Draws the token at which the cumulative probability exceeds `uniform`, a number in [0, 1).
///
/// # Panics
/// If there are no candidates.
pub fn draw(sorted: &[Candidate], uniform: f64) -> u32 {
    let mut cumulative = 0.0;
    let found = sorted.iter().find(|candidate| {
        cumulative += candidate.probability;
        cumulative > uniform
    });
    // The sum may round to just below 1.
    let possible = || sorted.iter().rfind(|candidate| candidate.probability > 0.0).unwrap_or(&sorted[0]);
    found.unwrap_or_else(possible).token
}

/// Rescales probabilities to a sum of 1.
fn normalised(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    let sum: f64 = candidates.iter().map(|candidate| candidate.probability).sum();
    candidates.iter_mut().for_each(|candidate| candidate.probability /= sum);
    candidates
}
