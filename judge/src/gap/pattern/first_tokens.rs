//! Detects that one side does not score tokens of the prompt or of the padding: its log-probabilities are 0 there.

use std::ops::Range;

use crate::gap::field_names::PolicySide;
use crate::gap::finding::{GapFinding, counted};
use crate::gap::pair_view::PairView;
use crate::gap::token_sample::ScoredToken;

/// Minimum length of a run of zeros.
const LEAST: usize = 2;
/// Minimum share of the zeros that differ from the other side by more than rounding.
const WRONG: f64 = 0.1;
/// Minimum share of the sum of squared differences at the zeros.
const SHARE: f64 = 0.9;

/// Finds runs of exact zeros at the start or end of sequences, where the other side has other values.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    [PolicySide::Rollout, PolicySide::Trainer]
        .into_iter()
        .find_map(|side| run(pair, side, false).or_else(|| run(pair, side, true)))
}

fn run(pair: &PairView, side: PolicySide, at_end: bool) -> Option<GapFinding> {
    let (mut indices, mut tokens, mut ranges) = (Vec::new(), 0, Vec::new());
    for (sequence, scored) in pair.sequences() {
        let zeros = if at_end { zeros(scored.iter().rev(), side) } else { zeros(scored.iter(), side) };
        if zeros >= LEAST {
            let Range { start, end } = sequence.tokens.clone();
            ranges.push(if at_end { end - zeros..end } else { start..start + zeros });
            indices.push(sequence.index);
            tokens += zeros;
        }
    }
    let share = pair.share_of(ranges.iter().cloned());
    let wrong = ranges
        .iter()
        .cloned()
        .flatten()
        .filter(|&index| !pair.is_rounding(&pair.sample.tokens[index]))
        .count();
    if indices.is_empty() || share < SHARE || (wrong as f64) < WRONG * tokens as f64 {
        return None;
    }
    let (cause, name, edge) = match at_end {
        false => ("prompt-included", "prompt tokens are compared", "first"),
        true => ("padding-included", "padding is compared", "last"),
    };
    let text = format!(
        "{name}: the log-probabilities of the {} are 0 at the {edge} {} of {}; leave these tokens out with \
         prompt_length, null, or a mask",
        side.name(),
        counted(tokens, "token"),
        counted(indices.len(), "sequence")
    );
    Some(GapFinding::fault(cause, text).at(indices, share))
}

/// Returns the length of the run of zeros of a side.
fn zeros<'t>(tokens: impl Iterator<Item = &'t ScoredToken>, side: PolicySide) -> usize {
    let own = |token: &ScoredToken| match side {
        PolicySide::Rollout => token.rollout,
        PolicySide::Trainer => token.trainer,
    };
    tokens.map(own).take_while(|own| *own == 0.0).count()
}
