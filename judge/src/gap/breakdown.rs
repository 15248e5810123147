//! Scales of the differences by probability and by position.

use serde::Serialize;

use super::pair_view::{PairView, rms};

/// Bounds of the classes of log-probabilities.
const CLASSES: [f64; 6] = [0.0, -0.1, -0.7, -2.0, -5.0, f64::NEG_INFINITY];
/// Number of ranges of positions.
const RANGES: usize = 5;

/// A class of tokens with the scale of its differences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TokenClass {
    /// Description, such as "p 0.50 to 0.90" or "positions 0 to 511".
    pub(crate) tokens: String,
    /// Number of tokens.
    pub(crate) count: usize,
    /// Root mean square difference of the log-odds.
    pub(crate) scale: f64,
    /// Mean difference of the log-probabilities, rollout - trainer.
    pub(crate) mean: f64,
    /// Largest absolute difference of the log-probabilities.
    pub(crate) max_abs: f64,
}

/// Returns the classes of tokens by probability and by position.
pub(super) fn classes(pair: &PairView) -> Vec<TokenClass> {
    let tokens = &pair.sample.tokens;
    let by_probability = CLASSES.windows(2).filter_map(|bounds| {
        let is_in = |at: &usize| {
            let logprob = tokens[*at].logprob().min(-0.0);
            logprob > bounds[1] && (logprob <= bounds[0])
        };
        let name = format!("p {:.3} to {:.3}", bounds[1].exp(), bounds[0].exp());
        class(pair, name, (0..tokens.len()).filter(is_in).collect())
    });
    let farthest = tokens.iter().map(|token| token.position as usize + 1).max().unwrap_or(0);
    let width = farthest.div_ceil(RANGES).max(1);
    let by_position = (0..RANGES).filter_map(|range| {
        let bounds = range * width..((range + 1) * width).min(farthest);
        let name = format!("positions {} to {}", bounds.start, bounds.end.saturating_sub(1));
        class(
            pair,
            name,
            (0..tokens.len()).filter(|&at| bounds.contains(&(tokens[at].position as usize))).collect(),
        )
    });
    by_probability.chain(by_position).collect()
}

fn class(pair: &PairView, tokens: String, indices: Vec<usize>) -> Option<TokenClass> {
    let count = indices.len();
    let scaled: Vec<f64> = indices.iter().map(|&at| pair.scaled[at]).collect();
    let deltas = || indices.iter().map(|&at| pair.sample.tokens[at].delta());
    (count > 0).then(|| TokenClass {
        tokens,
        count,
        scale: rms(&scaled),
        mean: deltas().sum::<f64>() / count as f64,
        max_abs: deltas().map(f64::abs).fold(0.0, f64::max),
    })
}
