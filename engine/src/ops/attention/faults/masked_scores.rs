//! Scores under another mask, and their softmax.

use crate::change::SiteContext;
use crate::exact::{is_given, within};
use crate::numerics::Numerics;
use crate::ops::attention::Mask;
use crate::ops::attention::exact::Softmax;
use crate::tensor::Tensor;
use crate::weight::DType;

/// Returns the dump's scores where the model's queries see keys, and our engine's scores elsewhere. Our scores may
/// differ from the dump's by rounding.
pub(super) fn known_scores(at: &SiteContext) -> Option<Tensor> {
    let Softmax { scores, mask, .. } = at.stage()?;
    let &[_, tokens, keys] = scores.shape() else { return None };
    let is_seen = |flat: usize| mask.visible(flat / keys % tokens, keys).contains(&(flat % keys));
    if !is_given(scores) || (0..tokens * keys).all(is_seen) {
        return Some(scores.clone());
    }
    let step = match at.n.activation_type() {
        DType::BF16 => 1.0 / 128.0,
        DType::F16 => 1.0 / 1024.0,
        // Bound for a sum of a few dozen products that may be larger than the sum.
        _ => 1.0 / (1u64 << 20) as f64,
    };
    let largest = scores.data().iter().fold(0.0f64, |largest, &score| largest.max(f64::from(score).abs()));
    let known = scores.data().to_vec();
    Some(within(scores.clone(), |flat| {
        (known[flat].into(), if is_seen(flat) { 0.0 } else { step * largest })
    }))
}

/// Replaces the scores of some keys. Keys that a query does not see get the score `hidden`.
pub(super) fn seeing(at: &SiteContext, hidden: f32, sees: impl Fn(usize, usize) -> bool) -> Option<Tensor> {
    let scores = known_scores(at)?;
    let &[_, tokens, keys] = scores.shape() else { return None };
    let nothing = Tensor::new(&[1], vec![hidden]);
    Some(at.n.gathered(&[&scores, &nothing], scores.shape(), |flat| {
        if sees(flat / keys % tokens, flat % keys) { (0, flat) } else { (1, 0) }
    }))
}

/// Computes softmax over the keys that each query sees.
pub(super) fn softmax_of_seen(at: &SiteContext, sees: impl Fn(usize, usize) -> bool) -> Option<Tensor> {
    softmax_of(at, &seeing(at, f32::NEG_INFINITY, sees)?, Mask::NONE)
}

/// Computes softmax of other scores, with the model's own sinks.
pub(super) fn softmax_of(at: &SiteContext, scores: &Tensor, mask: Mask) -> Option<Tensor> {
    let Softmax { sinks, .. } = at.stage()?;
    Some(match sinks {
        Some(sinks) => at.n.softmax_with_sinks(scores, mask, sinks),
        None => at.n.softmax(scores, mask),
    })
}
