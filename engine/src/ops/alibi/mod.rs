//! ALiBi (Press et al., 2022): adds to each score the slope of its head times the distance from the query to the
//! key, `score + m · (j − i)`, `[H, T, S]` to `[H, T, S]`. The distance is zero or negative.
//!
//! Softmax does not change if a constant is added to all scores of a row, so engines may add `m · j` instead.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::tensor::Tensor;

/// Returns the slope of each head. Let n be the largest power of two up to the number of heads. The first n slopes are
/// the powers 1 to n of 2^(-8/n); further slopes are the odd powers 1, 3, 5, … of 2^(-4/n).
pub(crate) fn slopes(heads: usize) -> Vec<f32> {
    let known = if heads == 0 { 1 } else { 1 << heads.ilog2() };
    let base = |of: usize| (-8.0 / of as f32).exp2();
    let slope = |head: usize| match head < known {
        true => base(known).powf((head + 1) as f32),
        false => base(2 * known).powf((2 * (head - known) + 1) as f32),
    };
    (0..heads).map(slope).collect()
}

/// Computes `add(score, slope, key, query)` for each score. `position` is the index of the pass's first token among the
/// keys.
pub(crate) fn added(
    scores: &Tensor,
    slopes: &[f32],
    position: usize,
    add: impl Fn(f32, f32, usize, usize) -> f32,
) -> Tensor {
    let &[heads, tokens, keys] = scores.shape() else { panic!("scores are [H, T, S]") };
    assert_eq!(slopes.len(), heads, "one slope for each head");
    let of_score = |(flat, &score): (usize, &f32)| {
        add(score, slopes[flat / keys / tokens], flat % keys, position + flat / keys % tokens)
    };
    Tensor::new(scores.shape(), scores.data().iter().enumerate().map(of_score).collect())
}

/// Returns the distance from a query to a key: negative for earlier keys.
pub(crate) fn distance(key: usize, query: usize) -> f32 {
    key as f32 - query as f32
}
