//! From logits to a token.

use rayon::prelude::*;

/// Index of the largest logit, the lowest on a tie. NaN is never chosen; all NaN gives 0.
pub fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if logit > logits[best] || (logits[best].is_nan() && !logit.is_nan()) {
            best = index;
        }
    }
    best
}

/// softmax(logits / temperature), in `f64`, rounded once.
///
/// The division by the temperature comes first, in `f32`, as samplers do it.
pub fn probabilities(logits: &[f32], temperature: f32) -> Vec<f32> {
    let scaled: Vec<f64> = logits.iter().map(|&logit| (logit / temperature).into()).collect();
    let max = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> =
        scaled.par_iter().with_min_len(4096).map(|value| (value - max).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|value| (value / sum) as f32).collect()
}
