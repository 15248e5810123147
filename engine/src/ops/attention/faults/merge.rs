//! Faults in merging attention. Prefix caching and chunked prefill compute attention separately over cached and
//! over new keys, then merge the parts by their sums of exponentials. A port may merge them with wrong shares.

use crate::change::{CatalogueEntry, CauseKind, SiteContext};
use crate::checkpoint::Point;
use crate::exact::within;
use crate::numerics::Numerics;
use crate::ops::attention::exact::Softmax;
use crate::ops::scaling::Multiplier;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::AttnMerge,
    at: &[Point::AttnWeights],
    takes: "base-2|base-e|exchanged|mean|sum",
    compute: |at, value| merged(at, value.as_word()?),
    ..CatalogueEntry::PLAIN
}];

/// Computes attention weights whose two parts are merged with wrong shares.
fn merged(at: &SiteContext, how: &str) -> Option<Tensor> {
    let Softmax { scores, mask, sinks: None } = at.stage()? else { return None };
    let &[_, tokens, keys] = scores.shape() else { return None };
    let past = keys.checked_sub(tokens).filter(|past| (1..=mask.position).contains(past))?;
    let all = scores.data();
    let (mut shifted, mut radii) = (all.to_vec(), vec![0.0f64; all.len()]);
    for row in 0..all.len() / keys {
        let visible = mask.visible(row % tokens, keys);
        let parts = [visible.start..past.max(visible.start), past.max(visible.start)..visible.end];
        let sums = parts.clone().map(|part| log_sum(&all[row * keys..][part]));
        // With one part, nothing is merged.
        let shifts = if parts[0].is_empty() { [0.0; 2] } else { shifts(how, sums)? };
        for (part, shift) in parts.into_iter().zip(shifts) {
            for flat in part.map(|key| row * keys + key) {
                let sum = f64::from(all[flat]) + shift;
                radii[flat] = ROUNDING * (sum.abs() + shift.abs() + 1.0);
                shifted[flat] = sum as f32;
            }
        }
    }
    let known = Tensor::new(scores.shape(), shifted.clone());
    let shifted = within(known, |flat| (shifted[flat].into(), radii[flat]));
    let weights = at.n.softmax(&shifted, *mask);
    // Two normalised parts that are added sum to 2.
    Some(if how == "sum" { at.n.scale(&weights, Multiplier::Number(2.0)) } else { weights })
}

/// Rounding error of a sum's logarithm, relative to its size.
const ROUNDING: f64 = 4.0 / (1u64 << 24) as f64;

/// Returns the logarithm of the sum of exponentials.
fn log_sum(scores: &[f32]) -> f64 {
    let largest = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = scores.iter().map(|&score| (f64::from(score) - largest).exp()).sum();
    largest + sum.ln()
}

/// Returns the number to add to the scores of each part, so that the part gets the wrong share.
fn shifts(how: &str, [past, new]: [f64; 2]) -> Option<[f64; 2]> {
    let scaled = |factor: f64| [(factor - 1.0) * past, (factor - 1.0) * new];
    match how {
        // Logarithms of base 2 are used as if their base were e, or the reverse.
        "base-2" => Some(scaled(std::f64::consts::LOG2_E)),
        "base-e" => Some(scaled(std::f64::consts::LN_2)),
        "exchanged" => Some([new - past, past - new]),
        "mean" | "sum" => Some([-past, -new]),
        _ => None,
    }
}
