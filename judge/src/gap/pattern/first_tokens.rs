//! Tokens of the prompt or of the padding that one side does not score: its log-probabilities are 0 there.

use std::ops::Range;

use crate::gap::field_names::PolicySide;
use crate::gap::finding::{GapFinding, counted};
use crate::gap::pair_view::PairView;
use crate::gap::token_sample::ScoredToken;

/// Shortest run of zeros that is not chance.
const LEAST: usize = 2;
/// A token with a smaller log-probability cannot be 0 by rounding.
const UNLIKELY: f64 = -0.5;

/// Finds runs of exact zeros at the start or the end of sequences, where the other side has other values.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    [PolicySide::Rollout, PolicySide::Trainer].into_iter().find_map(|side| {
        run(pair, side, false).or_else(|| run(pair, side, true))
    })
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
    let share = pair.share(|index| ranges.iter().any(|range: &Range<usize>| range.contains(&index)));
    if indices.is_empty() || share < 0.9 {
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

/// Returns the length of the run of zeros of a side, if the other side has probable tokens in at most half of it.
fn zeros<'t>(tokens: impl Iterator<Item = &'t ScoredToken>, side: PolicySide) -> usize {
    let values = |token: &ScoredToken| match side {
        PolicySide::Rollout => [token.rollout, token.trainer],
        PolicySide::Trainer => [token.trainer, token.rollout],
    };
    let run: Vec<[f32; 2]> = tokens.map(values).take_while(|[own, _]| *own == 0.0).collect();
    let unlikely = run.iter().filter(|[_, other]| f64::from(*other) < UNLIKELY).count();
    if 2 * unlikely >= run.len() { run.len() } else { 0 }
}
