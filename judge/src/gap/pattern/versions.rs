//! Differences that grow with the number of training steps between the two sides.

use std::collections::BTreeMap;

use serde_json::json;

use crate::gap::finding::GapFinding;
use crate::gap::pair_view::{PairView, rms};

/// Fewest tokens of a version that count.
const LEAST: usize = 30;
/// Smallest ratio of the largest to the smallest scale.
const RATIO: f64 = 3.0;

/// Finds differences that grow with the stated versions.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    let mut versions: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for sequence in &pair.sample.sequences {
        versions.entry(sequence.version?).or_default().extend(pair.scaled_of(sequence));
    }
    let scales: Vec<(i64, f64)> =
        versions.iter().filter(|(_, values)| values.len() >= LEAST).map(|(&version, values)| (version, rms(values))).collect();
    let grows = |scales: &[(i64, f64)]| scales.windows(2).all(|pair| pair[1].1 > pair[0].1);
    let mut ordered = scales.clone();
    if !grows(&ordered) {
        ordered.reverse();
    }
    let (&(fresh, least), &(stale, largest)) = (ordered.first()?, ordered.last()?);
    let is_stale = grows(&ordered) && largest > pair.limit().max(RATIO * least) && least <= pair.limit();
    if scales.len() < 3 || !is_stale {
        return None;
    }
    let text = format!(
        "weights of different training steps: the differences grow with the version, from a scale of {least:.3} at \
         version {fresh} (rounding) to {largest:.3} at version {stale}"
    );
    let wrong = |version: Option<i64>| version != Some(fresh);
    let indices = pair.sample.sequences.iter().filter(|sequence| wrong(sequence.version));
    let indices: Vec<usize> = indices.map(|sequence| sequence.index).collect();
    let mut is_wrong = vec![false; pair.sample.tokens.len()];
    for sequence in pair.sample.sequences.iter().filter(|sequence| wrong(sequence.version)) {
        is_wrong[sequence.tokens.clone()].fill(true);
    }
    let by_version: Vec<_> = scales.iter().map(|(version, scale)| json!({"version": version, "scale": scale})).collect();
    Some(GapFinding::fault("stale-weights", text).with("versions", by_version).at(indices, pair.share(|at| is_wrong[at])))
}
