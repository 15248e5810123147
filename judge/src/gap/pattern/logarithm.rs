//! Detects that one side uses logarithms of another base than e.

use std::f64::consts::{LN_2, LN_10};

use crate::gap::field_names::PolicySide;
use crate::gap::finding::GapFinding;
use crate::gap::pair_view::{PairView, rms};
use crate::gap::token_sample::ScoredToken;

/// Bases of logarithms that libraries use, with their natural logarithms.
const BASES: [(f64, f64); 2] = [(2.0, LN_2), (10.0, LN_10)];

/// Finds a base whose conversion reduces the differences to rounding.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    if pair.rms() <= pair.limit() {
        return None;
    }
    let sides = [PolicySide::Rollout, PolicySide::Trainer];
    let mut choices = sides.into_iter().flat_map(|side| BASES.map(|(base, factor)| (side, base, factor)));
    let (side, base, factor) =
        choices.find(|&(side, _, factor)| converted(pair, side, factor) <= pair.limit())?;
    let text = format!(
        "the {}'s log-probabilities are logarithms to base {base}: multiplied by {factor:.4}, they differ from the \
         {}'s only by rounding",
        side.name(),
        side.other().name()
    );
    Some(GapFinding::fault("logarithm-base", text).with("base", base))
}

/// Returns the scale of the differences after one side's values are multiplied by a factor.
fn converted(pair: &PairView, side: PolicySide, factor: f64) -> f64 {
    let factor = factor as f32;
    let convert = |token: &ScoredToken| match side {
        PolicySide::Rollout => ScoredToken { rollout: token.rollout * factor, ..*token },
        PolicySide::Trainer => ScoredToken { trainer: token.trainer * factor, ..*token },
    };
    rms(&pair.sample.tokens.iter().map(|token| pair.error.scaled(&convert(token))).collect::<Vec<_>>())
}
