//! Normalisation of token rows.

use crate::tensor::Tensor;

/// RMSNorm along the last axis: `x / sqrt(mean(x²) + eps) · weight` (Zhang and Sennrich, 2019).
///
/// `x` is `[T, d]` or, per head, `[T, H, D]`; `weight` is as long as the last axis. Squares are
/// summed in `f64`, as ggml does it; the rest is `f32`.
pub fn rms_norm(x: &Tensor, weight: &[f32], eps: f32) -> Tensor {
    let width = weight.len();
    let normed = Tensor::from_rows(x.data().len() / width, width, |row, out| {
        let x = &x.data()[row * width..][..width];
        let sum: f64 = x.iter().map(|&value| f64::from(value * value)).sum();
        let mean = (sum / x.len() as f64) as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    });
    normed.reshaped(x.shape())
}
