//! Detects differences that grow with the number of training steps between the two sides.

use std::collections::BTreeMap;

use serde_json::json;

use crate::gap::finding::GapFinding;
use crate::gap::logprob_error::median;
use crate::gap::pair_view::{PairView, rms};

/// Minimum number of sequences with the same version.
const LEAST: usize = 2;
/// Maximum number of sequences in the rank correlation.
const MOST: usize = 2000;
/// Minimum rank correlation between version and scale, in standard deviations.
const SIGMAS: f64 = 3.7;
/// Minimum ratio of the largest to the smallest scale.
const RATIO: f64 = 3.0;

/// Finds differences that grow with the stated versions.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    let mut versions: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    let (steps, mut ranked) = (steps(pair), Vec::new());
    for (sequence, step) in pair.sample.sequences.iter().zip(&steps) {
        let scale = rms(pair.scaled_of(sequence));
        versions.entry((*step)?).or_default().push(scale);
        if ranked.len() < MOST {
            ranked.push(((*step)?, scale));
        }
    }
    // The middle sequence of each version: single sequences with another fault do not count.
    let usual = |(version, scales): (i64, Vec<f64>)| {
        (scales.len() >= LEAST).then(|| (version, median(scales.into_iter())))
    };
    let scales: Vec<(i64, f64)> = versions.into_iter().filter_map(usual).collect();
    let concordance = concordance(&ranked);
    let mut ordered = scales.clone();
    if concordance < 0.0 {
        ordered.reverse();
    }
    let (&(fresh, least), &(oldest, largest)) = (ordered.first()?, ordered.last()?);
    let is_stale = largest > pair.limit().max(RATIO * least) && least <= pair.limit();
    if scales.len() < 3 || !is_stale || concordance.abs() < SIGMAS {
        return None;
    }
    let text = format!(
        "weights of different training steps: the differences grow with the version, from a scale of {least:.2e} at \
         version {fresh} (rounding) to {largest:.2e} at version {oldest}"
    );
    let stale = || pair.sample.sequences.iter().zip(&steps).filter(|(_, step)| **step != Some(fresh));
    let indices: Vec<usize> = stale().map(|(sequence, _)| sequence.index).collect();
    let share = pair.share_of(stale().map(|(sequence, _)| sequence.tokens.clone()));
    let by_version: Vec<_> =
        scales.iter().map(|(version, scale)| json!({"version": version, "scale": scale})).collect();
    Some(GapFinding::fault("stale-weights", text).with("versions", by_version).at(indices, share))
}

/// Returns the number of training steps between both sides. If only one side states a version, or both state the
/// same one, returns the version.
fn steps(pair: &PairView) -> Vec<Option<i64>> {
    let versions = || pair.sample.sequences.iter().map(|sequence| sequence.versions);
    let between =
        |[rollout, trainer]: [Option<i64>; 2]| trainer?.checked_sub(rollout?).map(i64::saturating_abs);
    match versions().any(|both| between(both).is_some_and(|steps| steps > 0)) {
        true => versions().map(between).collect(),
        false => versions().map(|[rollout, trainer]| rollout.or(trainer)).collect(),
    }
}

/// Returns Kendall's S of version and scale, in standard deviations. It is 0 on average if they are independent.
fn concordance(ranked: &[(i64, f64)]) -> f64 {
    let (mut sum, mut ties) = (0.0, BTreeMap::<i64, f64>::new());
    for (at, (version, scale)) in ranked.iter().enumerate() {
        *ties.entry(*version).or_default() += 1.0;
        for (other, other_scale) in &ranked[..at] {
            sum += f64::from(version.cmp(other) as i8) * (scale - other_scale).signum();
        }
    }
    let variance = |count: f64| count * (count - 1.0) * (2.0 * count + 5.0) / 18.0;
    let variance = variance(ranked.len() as f64) - ties.values().map(|&count| variance(count)).sum::<f64>();
    sum / variance.max(1.0).sqrt()
}
