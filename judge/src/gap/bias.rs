//! Finds a side whose log-probabilities are larger on average.

use std::ops::Range;

use super::finding::GapFinding;
use super::pair_view::PairView;
use super::token_sample::ScoredToken;

/// Largest mean difference of runs without a bias, relative to the root mean square difference.
const BIAS: f64 = 0.25;
/// Number of standard errors, computed over sequences, by which a mean difference must exceed that of runs without
/// a bias to count as a bias.
const SIGMAS: f64 = 5.0;

/// Finds a mean difference that rounding cannot cause. Rounding shifts the mean only by the KL divergence of the
/// tokens.
pub(super) fn bias(pair: &PairView) -> Option<GapFinding> {
    let deltas = |range: Range<usize>| pair.sample.tokens[range].iter().map(ScoredToken::delta);
    let count = pair.sample.tokens.len();
    let sums: Vec<f64> = pair.sample.sequences.iter().map(|one| deltas(one.tokens.clone()).sum()).collect();
    let mean = sums.iter().sum::<f64>() / count.max(1) as f64;
    let lengths = pair.sample.sequences.iter().map(|one| one.tokens.len() as f64);
    let spread: f64 = sums.iter().zip(lengths).map(|(sum, length)| (sum - mean * length).powi(2)).sum();
    let error = spread.sqrt() / count.max(1) as f64;
    let square = deltas(0..count).map(|delta| delta * delta).sum::<f64>() / count.max(1) as f64;
    let by_chance = square + BIAS * square.sqrt() + SIGMAS * error;
    let is_bias = sums.len() >= 8 && mean.abs() > by_chance.max(pair.largest_bias());
    is_bias.then(|| {
        let (larger, smaller) = if mean > 0.0 { ("rollout", "trainer") } else { ("trainer", "rollout") };
        let text = format!(
            "the {larger}'s log-probabilities are larger than the {smaller}'s by {:.2e} on average ({:.0} standard errors); \
             rounding has no such bias",
            mean.abs(),
            mean.abs() / error.max(f64::MIN_POSITIVE)
        );
        match pair.rms() > pair.limit() {
            true => GapFinding::fault("bias", text),
            false => GapFinding::doubt("bias", text),
        }
    })
}
