//! Sampling of a token from logits.
//!
//! The order is: temperature, softmax, top-k, top-p, min-p. Each filter renormalises the tokens that the previous
//! filter kept.

use std::cmp::Ordering;

use crate::parallel;

/// Temperature below which the likeliest token is chosen (GPT-2 specification, 8.1).
pub const GREEDY_BELOW: f32 = 1e-6;

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

/// Computes softmax(logits / temperature) in `f64`, rounded once.
///
/// The division by the temperature is first done in `f32`, as in samplers, unless it overflows.
pub fn probabilities(logits: &[f32], temperature: f32) -> Vec<f32> {
    let scaled = divided(logits, temperature);
    let max = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials = parallel::map(scaled.len(), 8, |index| (scaled[index] - max).exp());
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|value| (value / sum) as f32).collect()
}

/// Vocabulary tokens to look up in each row of logits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picks {
    /// `[T]`, or `[T, k]`.
    pub shape: Vec<usize>,
    /// Token ids, row by row.
    pub ids: Vec<u32>,
    /// Row of logits for each row of ids.
    pub rows: Vec<usize>,
    /// Token before the first row's token; for other rows it is the token of the previous row.
    pub before: u32,
    /// True if the softmax covers only these ids instead of the vocabulary.
    pub is_closed: bool,
}

impl Picks {
    /// Creates a list of one or several tokens for each row.
    pub fn new(shape: &[usize], ids: Vec<u32>) -> Self {
        let rows = (0..shape[0]).collect();
        Self { shape: shape.to_vec(), ids, rows, before: 0, is_closed: false }
    }

    /// Returns the number of ids in a row.
    pub fn width(&self) -> usize {
        self.ids.len().checked_div(self.rows.len()).unwrap_or(0)
    }

    /// Returns the ids of a row.
    pub fn row(&self, row: usize) -> &[u32] {
        &self.ids[row * self.width()..][..self.width()]
    }
}

/// Computes log softmax(logits / temperature) of some tokens, in `f64`.
pub fn log_probabilities(logits: &[f32], ids: &[u32], is_closed: bool, temperature: f32) -> Vec<f64> {
    let scaled = |id: usize| f64::from(logits[id]) / f64::from(temperature);
    let sum_of = |among: &mut dyn Iterator<Item = usize>| {
        let all: Vec<f64> = among.map(scaled).collect();
        let max = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        max + all.iter().map(|z| (z - max).exp()).sum::<f64>().ln()
    };
    let ids = ids.iter().map(|&id| id as usize);
    let log_sum = match is_closed {
        true => sum_of(&mut ids.clone()),
        false => sum_of(&mut (0..logits.len())),
    };
    ids.map(|id| scaled(id) - log_sum).collect()
}

fn divided(logits: &[f32], temperature: f32) -> Vec<f64> {
    let overflows = |&logit: &f32| logit.is_finite() && (logit / temperature).is_infinite();
    match logits.iter().any(overflows) {
        true => logits.iter().map(|&logit| f64::from(logit) / f64::from(temperature)).collect(),
        false => logits.iter().map(|&logit| (logit / temperature).into()).collect(),
    }
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
pub fn top_k(mut sorted: Vec<Candidate>, k: usize) -> Vec<Candidate> {
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
pub fn min_p(mut sorted: Vec<Candidate>, p: f64) -> Vec<Candidate> {
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
