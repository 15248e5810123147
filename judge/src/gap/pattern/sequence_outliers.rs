//! Detects whole sequences with larger differences than the others.

use crate::gap::change_point::{ChangePoint, LEAST_SIDE};
use crate::gap::finding::{GapFinding, counted, listed};
use crate::gap::logprob_error::median;
use crate::gap::pair_view::{PairView, rms};
use crate::gap::token_sample::SampleSequence;

/// Minimum number of tokens for a sequence to be considered.
const LEAST: usize = 6;
/// Minimum ratio of an outlier's scale to the scale of the median sequence.
const RATIO: f64 = 4.0;
/// Maximum share of outliers. With more of them, the median sequence would be an outlier itself.
const MOST: f64 = 0.45;

/// Finds sequences with large differences, if the other sequences differ only by rounding.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    let outliers: Vec<&SampleSequence> =
        pair.sample.sequences.iter().filter(|sequence| is_outlier(pair, sequence)).collect();
    let is_few = outliers.len() as f64 <= MOST * pair.sample.sequences.len() as f64;
    if outliers.is_empty() || !is_few || pair.typical > pair.limit() || pair.sample.sequences.len() < 4 {
        return None;
    }
    let scale = median(outliers.iter().map(|sequence| rms(pair.scaled_of(sequence))));
    let indices: Vec<usize> = outliers.iter().map(|sequence| sequence.index).collect();
    let share = pair.share_of(outliers.iter().map(|sequence| sequence.tokens.clone()));
    let start = steps(pair, &outliers);
    let from = start.map_or(String::new(), |start| format!(" from position {start} on"));
    let text = format!(
        "{} of {} ({}) differ{from}: scale {scale:.2e}, {:.2e} in the others. Candidates: packing without a mask, positions \
         not reset, a stale prefix cache, another prompt",
        counted(outliers.len(), "sequence"),
        pair.sample.sequences.len(),
        listed(&indices),
        pair.typical
    );
    let finding = GapFinding::fault("outlier-sequences", text).at(indices, share);
    Some(match start {
        Some(start) => finding.with("from_position", start),
        None => finding,
    })
}

fn is_outlier(pair: &PairView, sequence: &SampleSequence) -> bool {
    let values = pair.scaled_of(sequence);
    if values.len() < LEAST {
        return false;
    }
    // Single tokens with large differences make no outlier sequence: the largest sixteenth is left out.
    let mut squares: Vec<f64> = values.iter().map(|value| value * value).collect();
    let dropped = squares.len().div_ceil(16);
    squares.sort_by(f64::total_cmp);
    squares.truncate(squares.len() - dropped);
    let scale = (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
    // The scale of few tokens is uncertain.
    let uncertainty = 1.0 + 3.0 / (values.len() as f64).sqrt();
    scale > uncertainty * pair.limit().max(RATIO / 1.5 * pair.typical)
}

/// Returns the median of the positions at which the outliers begin to differ, if the tokens before agree like those
/// of other sequences.
fn steps(pair: &PairView, outliers: &[&SampleSequence]) -> Option<u32> {
    let starts: Vec<f64> = outliers
        .iter()
        .filter_map(|sequence| {
            let values = pair.scaled_of(sequence);
            let groups: Vec<(f64, usize)> = values.iter().map(|value| (value * value, 1)).collect();
            let step = ChangePoint::of(&groups, LEAST_SIDE)?;
            let is_step = step.before <= pair.limit() && step.after > RATIO * step.before;
            is_step.then(|| f64::from(pair.sample.of(sequence)[step.at].position))
        })
        .collect();
    (2 * starts.len() > outliers.len()).then(|| median(starts.into_iter()) as u32)
}
