//! Normalisation of token rows.

use crate::tensor::Tensor;

/// RMSNorm of each row: `x / sqrt(mean(x²) + eps) · weight` (Zhang and Sennrich, 2019).
///
/// `x` is `[T, d]`, `weight` is `[d]`. Squares are summed in `f64`, as ggml does it; the rest is `f32`.
pub fn rms_norm(x: &Tensor, weight: &[f32], eps: f32) -> Tensor {
    Tensor::from_rows(x.rows(), x.row_len(), |row, out| {
        let x = x.row(row);
        let sum: f64 = x.iter().map(|&value| f64::from(value * value)).sum();
        let mean = (sum / x.len() as f64) as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    })
}
