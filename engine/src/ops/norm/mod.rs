//! Normalisation of rows: `[T, d]`, or `[T, H, D]` per head, to the same shape.
//!
//! - RMSNorm (Zhang and Sennrich, 2019): `x / sqrt(mean(x²) + eps) · gain`
//! - LayerNorm (Ba et al., 2016): `(x - mean) / sqrt(variance + eps) · weight + bias`

pub mod exact;
pub(crate) mod faults;

use crate::kernels::elementwise::per_column;
use crate::tensor::Tensor;

/// RMSNorm (Zhang and Sennrich, 2019) of rows as long as `weight`, or of equal parts of such rows.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// `[d]`, or `[D]` for a norm of each head.
    pub weight: Vec<f32>,
    /// Epsilon, added to the mean square.
    pub eps: f32,
    /// Relation between the gain and the stored weight: the weight itself, or 1 + weight.
    pub gain: Gain,
    /// Number of parts of a row, each with a mean square of its own: 1, or the groups of heads of Mamba-2.
    pub groups: usize,
}

/// Gain of a norm: the factor of the normed row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gain {
    /// The weight.
    Weight,
    /// The weight, applied before any rounding to a short type, as in OLMo 2's reference code.
    WeightFirst,
    /// 1 + weight, as in Gemma's own files. (GGUF files contain the sum.)
    OnePlusWeight,
    /// 2 + weight: a known mistake, made if the file already contains 1 + weight and the engine adds 1 again.
    TwoPlusWeight,
}

impl RmsNorm {
    /// Returns the number of values that share a mean square.
    pub(crate) fn width(&self) -> usize {
        self.weight.len() / self.groups
    }

    /// Returns the gains of the normed row: `[d]`.
    pub(crate) fn gains(&self) -> impl Iterator<Item = f32> {
        self.weight.iter().map(|&weight| self.gain.of(weight))
    }
}

impl Gain {
    /// Returns the gain for a stored weight.
    pub(crate) fn of(self, weight: f32) -> f32 {
        match self {
            Gain::Weight | Gain::WeightFirst => weight,
            Gain::OnePlusWeight => 1.0 + weight,
            Gain::TwoPlusWeight => 1.0 + (1.0 + weight),
        }
    }
}

/// LayerNorm (Ba et al., 2016) of rows as long as `weight`: `(x - mean) / sqrt(variance + eps) · weight + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// `[d]`
    pub weight: Vec<f32>,
    /// `[d]`
    pub bias: Vec<f32>,
    /// Epsilon, added to the variance.
    pub eps: f32,
    /// Gain in terms of the weight: the weight itself, or 1 + weight.
    pub gain: Gain,
}

impl LayerNorm {
    /// Multiplies standardised rows by the weight and adds the bias: two roundings.
    pub(crate) fn scaled(&self, standardised: Tensor) -> Tensor {
        let gains = self.weight.iter().map(|&weight| self.gain.of(weight));
        let weighted = per_column(standardised, gains, |x, gain| x * gain);
        per_column(weighted, self.bias.iter().copied(), |x, bias| x + bias)
    }
}

/// Computes `x / sqrt(mean(x²) + eps)` along the last axis, which has `width` values: `[T, d]` or, per head, `[T, H,
/// D]`.
///
/// Squares are summed in `f64`, as in ggml; the rest is `f32`.
pub(crate) fn rms_normed(x: &Tensor, width: usize, eps: f32) -> Tensor {
    per_row(x, width, |x, out| {
        let scale = 1.0 / (mean_square(x) + eps).sqrt();
        out.iter_mut().zip(x).for_each(|(out, x)| *out = x * scale);
    })
}

/// Computes `(x - mean) / sqrt(variance + eps)` along the last axis, which has `width` values: `[T, d]`.
///
/// `mean` computes the average of a row, `mean_square` the average square of its deviations. (The variance is the
/// biased one.)
pub(crate) fn standardised(
    x: &Tensor,
    width: usize,
    eps: f32,
    mean: fn(&[f32]) -> f32,
    mean_square: fn(&[f32]) -> f32,
) -> Tensor {
    per_row(x, width, |x, out| {
        let mean = mean(x);
        out.iter_mut().zip(x).for_each(|(out, x)| *out = x - mean);
        let scale = 1.0 / (mean_square(out) + eps).sqrt();
        out.iter_mut().for_each(|out| *out *= scale);
    })
}

/// Returns the mean, summed in `f64`.
pub(crate) fn mean(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
    (sum / values.len() as f64) as f32
}

/// Returns the mean square; squares are `f32`, summed in `f64`.
pub(crate) fn mean_square(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|&value| f64::from(value * value)).sum();
    (sum / values.len() as f64) as f32
}

/// Applies `norm` to each row of `width` values, rows in parallel, and keeps the shape.
pub(crate) fn per_row(x: &Tensor, width: usize, norm: impl Fn(&[f32], &mut [f32]) + Sync) -> Tensor {
    let rows = x.data().len() / width;
    let normed = Tensor::from_rows(rows, width, |row, out| norm(&x.data()[row * width..][..width], out));
    normed.reshaped(x.shape())
}
