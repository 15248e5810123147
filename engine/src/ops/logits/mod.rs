//! Logits: their last row, `[T, V]` to `[1, V]`, and its probabilities, softmax(logits / temperature).

pub(crate) mod exact;
pub(crate) mod faults;

use crate::parallel;

/// Computes softmax(logits / temperature) in `f64`, rounded once.
///
/// The division by the temperature is first done in `f32`, as in samplers, unless it overflows.
pub fn probabilities(logits: &[f32], temperature: f32) -> Vec<f32> {
    let scaled = divided(logits, temperature);
    let max = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials = parallel::map(scaled.len(), 8, |index| (scaled[index] - max).exp());
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|value| (value / sum) as f32).collect()
}

fn divided(logits: &[f32], temperature: f32) -> Vec<f64> {
    let overflows = |&logit: &f32| logit.is_finite() && (logit / temperature).is_infinite();
    match logits.iter().any(overflows) {
        true => logits.iter().map(|&logit| f64::from(logit) / f64::from(temperature)).collect(),
        false => logits.iter().map(|&logit| (logit / temperature).into()).collect(),
    }
}
