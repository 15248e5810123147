//! Sums of a softmax in f32. Their rounding error has one sign and grows with the vocabulary.

use super::finding::GapFinding;
use super::pair_view::PairView;
use super::token_sample::ScoredToken;

/// Largest relative error of one addition in f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Returns a doubt if another order of the softmax's sum in f32 can cause all differences.
///
/// A sum of n positive terms, one after the other, has a relative error of at most n·u (Higham, "Accuracy and Stability
/// of Numerical Algorithms", 4.2). The largest token id is a lower limit of n.
pub(super) fn doubt(pair: &PairView) -> Option<GapFinding> {
    let tokens = &pair.sample.tokens;
    let largest = tokens.iter().map(|token| token.id).filter(|&id| id != u32::MAX).max()?;
    let entries = f64::from(largest) + 1.0;
    let limit = entries * U;
    let is_within = |sign: f64| {
        tokens.iter().all(|token: &ScoredToken| {
            let noise = 6.0 * pair.error.sigma(token, pair.limit());
            (-noise..=limit + noise).contains(&(sign * token.delta()))
        })
    };
    let text = format!(
        "apart from rounding, all differences have one sign and are at most {limit:.1e}: two orders of the softmax's sum \
         in f32 can differ so much with {entries} or more entries; compute the log-softmax of both sides in f64 to decide"
    );
    (is_within(1.0) || is_within(-1.0)).then(|| GapFinding::doubt("softmax-sum", text))
}
