//! Normalisation of token rows.

use crate::tensor::Tensor;

/// RMSNorm (Zhang and Sennrich, 2019) of rows as long as `weight`.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// `[d]`, or `[D]` for a norm of each head.
    pub weight: Vec<f32>,
    /// Added to the mean square.
    pub eps: f32,
    /// What of the weight the normed row is multiplied with.
    pub gain: Gain,
}

/// What a normed row is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gain {
    /// The weight.
    Weight,
    /// One and the weight, as Gemma's own files have it. (In GGUF files the one has been added.)
    OnePlusWeight,
}

impl RmsNorm {
    /// What a normed row is multiplied with: `[d]`.
    pub fn gains(&self) -> impl Iterator<Item = f32> {
        self.weight.iter().map(|&weight| match self.gain {
            Gain::Weight => weight,
            Gain::OnePlusWeight => 1.0 + weight,
        })
    }
}

/// LayerNorm (Ba et al., 2016) of rows as long as `weight`: `(x - mean) / sqrt(variance + eps) · weight + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// `[d]`
    pub weight: Vec<f32>,
    /// `[d]`
    pub bias: Vec<f32>,
    /// Added to the variance.
    pub eps: f32,
}

/// `x / sqrt(mean(x²) + eps)` along the last axis, which has `width` values: `[T, d]` or, per head, `[T, H, D]`.
///
/// Squares are summed in `f64`, as ggml does it; the rest is `f32`.
pub fn rms_normed(x: &Tensor, width: usize, eps: f32) -> Tensor {
    per_row(x, width, |x, out| {
        let sum: f64 = x.iter().map(|&value| f64::from(value * value)).sum();
        let mean = (sum / x.len() as f64) as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        out.iter_mut().zip(x).for_each(|(out, x)| *out = x * scale);
    })
}

/// `(x - mean) / sqrt(variance + eps)` along the last axis, which has `width` values: `[T, d]`.
///
/// The variance is the biased one, the mean of the squared deviations. Sums are `f64`, as in ggml.
pub fn standardised(x: &Tensor, width: usize, eps: f32) -> Tensor {
    per_row(x, width, |x, out| {
        let mean = (x.iter().map(|&value| f64::from(value)).sum::<f64>() / x.len() as f64) as f32;
        out.iter_mut().zip(x).for_each(|(out, x)| *out = x - mean);
        let sum: f64 = out.iter().map(|&value| f64::from(value * value)).sum();
        let variance = (sum / x.len() as f64) as f32;
        let scale = 1.0 / (variance + eps).sqrt();
        out.iter_mut().for_each(|out| *out *= scale);
    })
}

/// Each row of `width` values through `norm`, rows in parallel.
pub fn per_row(x: &Tensor, width: usize, norm: impl Fn(&[f32], &mut [f32]) + Sync) -> Tensor {
    let rows = x.data().len() / width;
    let normed = Tensor::from_rows(rows, width, |row, out| norm(&x.data()[row * width..][..width], out));
    normed.reshaped(x.shape())
}
