//! Patterns of differences that rounding cannot give, one file each.
//!
//! A pattern is reported only if it explains the differences: once it is removed, little difference is left.

mod first_tokens;
mod logarithm;
mod one_sided;
mod permutation;
mod positions;
mod sequence_outliers;
mod shift;
mod temperature;
mod token_outliers;
mod versions;

use super::finding::GapFinding;
use super::pair_view::PairView;

/// Returns the patterns of a pair, the best explanation first.
pub(super) fn patterns(pair: &PairView) -> Vec<GapFinding> {
    let whole = [
        shift::find,
        permutation::find,
        first_tokens::find,
        logarithm::find,
        one_sided::find_processed,
        temperature::find,
        one_sided::find_range,
    ];
    if let Some(found) = whole.into_iter().find_map(|find| find(pair)) {
        return vec![found];
    }
    if let Some(found) = versions::find(pair) {
        return vec![found];
    }
    // Outlier tokens that all sequences have look like a position step, so they are searched first.
    let places = [token_outliers::find, sequence_outliers::find, positions::find, one_sided::find_excess];
    places.into_iter().find_map(|find| find(pair)).into_iter().collect()
}
