//! Detects log-probabilities that belong to the token before or after.

use crate::gap::finding::GapFinding;
use crate::gap::logprob_error::median;
use crate::gap::pair_view::PairView;
use crate::gap::token_sample::ScoredToken;

/// Maximum number of positions by which log-probabilities may be shifted.
const FARTHEST: isize = 3;
/// Minimum number of tokens in a sequence in which a shift is searched.
const LEAST: usize = 30;
/// Maximum ratio of the median difference with the shift to the one without it.
const RATIO: f64 = 0.2;

/// Finds a shift that makes the log-probabilities of all sequences agree.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    if pair.typical <= pair.limit() || pair.sample.tokens.len() < LEAST {
        return None;
    }
    let plain = typical(pair, 0);
    let shifts = (-FARTHEST..=FARTHEST).filter(|&by| by != 0);
    let (by, left) =
        shifts.map(|by| (by, typical(pair, by))).min_by(|one, other| one.1.total_cmp(&other.1))?;
    if left > RATIO * plain {
        return None;
    }
    let (tokens, where_) = (by.unsigned_abs(), if by > 0 { "after" } else { "before" });
    let text = format!(
        "shifted by {tokens}: the trainer has the log-probability of a token at the {}; median |Δ| is {left:.2e} with \
         the shift and {plain:.2e} without it",
        match tokens {
            1 => format!("token {where_} it"),
            _ => format!("position {tokens} tokens {where_} it"),
        }
    );
    Some(GapFinding::fault("shifted", text).with("shift", by as i64))
}

/// Returns the median difference between a token's log-probability and the trainer's log-probability `by` tokens
/// later.
fn typical(pair: &PairView, by: isize) -> f64 {
    median(pair.sequences().flat_map(|(_, tokens)| moved(tokens, by)))
}

fn moved(tokens: &[ScoredToken], by: isize) -> impl Iterator<Item = f64> {
    (0..tokens.len()).filter_map(move |at| {
        let other = tokens.get(at.checked_add_signed(by)?)?;
        Some((f64::from(tokens[at].rollout) - f64::from(other.trainer)).abs())
    })
}
