//! Detects differences that start at the same position in all sequences.

use crate::gap::change_point::ChangePoint;
use crate::gap::finding::GapFinding;
use crate::gap::logprob_error::median;
use crate::gap::pair_view::{PairView, rms};

/// Length up to which sequences are searched for a step.
const MOST_POSITIONS: usize = 1 << 22;
/// Minimum number of tokens before and after the step.
const LEAST: usize = 40;
/// Minimum ratio of the scale after the step to the scale before it.
const RATIO: f64 = 4.0;

/// Finds the position after which all sequences differ.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    let position = |index: usize| pair.sample.tokens[index].position as usize;
    let farthest = (0..pair.sample.tokens.len()).map(position).max()?;
    if farthest >= MOST_POSITIONS {
        return None;
    }
    let mut groups = vec![(0.0, 0); farthest + 1];
    for (index, value) in pair.scaled.iter().enumerate() {
        let group = &mut groups[position(index)];
        *group = (group.0 + value * value, group.1 + 1);
    }
    let step = ChangePoint::of(&groups, LEAST)?;
    let is_step = step.before <= pair.limit() && step.after > (RATIO * step.before).max(1.5 * pair.limit());
    if !is_step || !are_usual(pair, step.at) || !are_most_different(pair, step.at) {
        return None;
    }
    let share = pair.share(|index| position(index) >= step.at);
    let text = format!(
        "from position {} on, the sequences differ: scale {:.2e}, {:.2e} before. Candidates: a position offset, a \
         stale prefix cache, RoPE scaling, a sliding window",
        step.at, step.after, step.before
    );
    let sequences = Vec::new();
    Some(GapFinding::fault("position-step", text).with("from_position", step.at).at(sequences, share))
}

/// Returns true if typical differences are larger after the step too, and not only those of a few tokens.
fn are_usual(pair: &PairView, step: usize) -> bool {
    let tokens = pair.sample.tokens.iter().zip(&pair.scaled);
    let [before, after] = [false, true].map(|is_after| {
        let there = tokens.clone().filter(|(token, _)| (token.position as usize >= step) == is_after);
        median(there.map(|(_, scaled)| scaled.abs()))
    });
    after > 2.0 * before
}

/// Returns true if most of the sequences that reach the step differ after it.
fn are_most_different(pair: &PairView, step: usize) -> bool {
    let (mut reached, mut wrong) = (0, 0);
    for (sequence, tokens) in pair.sequences() {
        let first = tokens.partition_point(|token| (token.position as usize) < step);
        let after = &pair.scaled_of(sequence)[first..];
        if after.len() >= 4 {
            reached += 1;
            wrong += usize::from(rms(after) > pair.limit());
        }
    }
    2 * wrong > reached
}
