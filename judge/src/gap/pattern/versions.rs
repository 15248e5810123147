//! Differences that grow with the number of training steps between the two sides.

use std::collections::BTreeMap;

use serde_json::json;

use crate::gap::finding::GapFinding;
use crate::gap::logprob_error::median;
use crate::gap::pair_view::{PairView, rms};

/// Fewest sequences of a version that count.
const LEAST: usize = 3;
/// Smallest ratio of the largest to the smallest scale.
const RATIO: f64 = 3.0;

/// Finds differences that grow with the stated versions.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    let mut versions: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    let steps = steps(pair);
    for (sequence, step) in pair.sample.sequences.iter().zip(&steps) {
        versions.entry((*step)?).or_default().push(rms(pair.scaled_of(sequence)));
    }
    // The middle sequence of each version: single sequences with another fault do not count.
    let usual = |(version, scales): (i64, Vec<f64>)| {
        (scales.len() >= LEAST).then(|| (version, median(scales.into_iter())))
    };
    let scales: Vec<(i64, f64)> = versions.into_iter().filter_map(usual).collect();
    let grows = |scales: &[(i64, f64)]| scales.windows(2).all(|pair| pair[1].1 > pair[0].1);
    let mut ordered = scales.clone();
    if !grows(&ordered) {
        ordered.reverse();
    }
    let (&(fresh, least), &(oldest, largest)) = (ordered.first()?, ordered.last()?);
    let is_stale = grows(&ordered) && largest > pair.limit().max(RATIO * least) && least <= pair.limit();
    if scales.len() < 3 || !is_stale {
        return None;
    }
    let text = format!(
        "weights of different training steps: the differences grow with the version, from a scale of {least:.3} at \
         version {fresh} (rounding) to {largest:.3} at version {oldest}"
    );
    let stale = || pair.sample.sequences.iter().zip(&steps).filter(|(_, step)| **step != Some(fresh));
    let indices: Vec<usize> = stale().map(|(sequence, _)| sequence.index).collect();
    let share = pair.share_of(stale().map(|(sequence, _)| sequence.tokens.clone()));
    let by_version: Vec<_> =
        scales.iter().map(|(version, scale)| json!({"version": version, "scale": scale})).collect();
    Some(GapFinding::fault("stale-weights", text).with("versions", by_version).at(indices, share))
}

/// Returns the training steps between both sides; the stated version, if only one side states it or both state the same.
fn steps(pair: &PairView) -> Vec<Option<i64>> {
    let versions = || pair.sample.sequences.iter().map(|sequence| sequence.versions);
    let between =
        |[rollout, trainer]: [Option<i64>; 2]| trainer?.checked_sub(rollout?).map(i64::saturating_abs);
    match versions().any(|both| between(both).is_some_and(|steps| steps > 0)) {
        true => versions().map(between).collect(),
        false => versions().map(|[rollout, trainer]| rollout.or(trainer)).collect(),
    }
}
