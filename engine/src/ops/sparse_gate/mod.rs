//! Sparse gate: keeps the part of each value that exceeds a threshold of the row,
//! `max(x - (mean + quantile · deviation), 0)`. For normally distributed values, the quantile of a probability p
//! leaves the share 1 - p. `[T, F]` to `[T, F]`. Source: Gemma 3n (Google, 2025).

pub(crate) mod exact;
pub(crate) mod faults;

use crate::tensor::Tensor;

/// Sparse gate: gate values below a threshold become zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateSparsity {
    /// Number of standard deviations by which the threshold exceeds the mean.
    pub(crate) quantile: f32,
    /// True for the standard deviation of a sample, which divides by the number of values minus one, as in llama.cpp.
    pub(crate) is_of_sample: bool,
}

/// Quantile of 0.95 in llama.cpp, a constant of its code.
const LLAMA_CPP_QUANTILE: f32 = 1.644_853_4;

impl GateSparsity {
    /// Returns the sparsity as llama.cpp computes it. A quantile of 0.95 becomes llama.cpp's constant, even if the last
    /// digits in the file differ.
    pub(crate) fn in_llama_cpp(self) -> Self {
        let is_it = (self.quantile / LLAMA_CPP_QUANTILE - 1.0).abs() <= 4.0 * f32::EPSILON;
        Self { quantile: if is_it { LLAMA_CPP_QUANTILE } else { self.quantile }, ..self }
    }

    /// Returns the sparsity that leaves the share `1 - probability`; `None` for a probability that is not between 0 and 1.
    pub(crate) fn of(probability: f32) -> Option<Self> {
        // As in torch: the argument of the inverse error function is f32.
        let argument = 2.0 * probability - 1.0;
        let is_inside = argument > -1.0 && argument < 1.0;
        let quantile = (inverse_erf(argument.into()) as f32) * std::f32::consts::SQRT_2;
        is_inside.then_some(Self { quantile, is_of_sample: false })
    }

    /// Returns the divisor of the sum of squared deviations.
    pub(crate) fn divisor(self, len: usize) -> f32 {
        if self.is_of_sample { len as f32 - 1.0 } else { len as f32 }
    }

    /// Computes the gate as ggml does: sums are `f64`, all else is `f32`.
    pub(crate) fn of_gate(self, gate: &Tensor) -> Tensor {
        let width = gate.row_len();
        Tensor::from_rows(gate.rows(), width, |row, out| {
            let x = gate.row(row);
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() as f32 / width as f32;
            let square = |x: &f32| f64::from((x - mean) * (x - mean));
            let variance = x.iter().map(square).sum::<f64>() as f32 * (1.0 / self.divisor(width));
            let threshold = mean + variance.sqrt() * self.quantile;
            out.iter_mut().zip(x).for_each(|(out, x)| *out = (x - threshold).max(0.0));
        })
    }
}

/// Computes the inverse of the error function by Newton's method, from Winitzki's approximation.
fn inverse_erf(y: f64) -> f64 {
    const SHAPE: f64 = 0.147;
    let log = (1.0 - y * y).ln();
    let half = 2.0 / (std::f64::consts::PI * SHAPE) + log / 2.0;
    let first = ((half * half - log / SHAPE).sqrt() - half).sqrt().copysign(y);
    let step = |x: f64| {
        let slope = std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp();
        x - (libm::erf(x) - y) / slope
    };
    (0..4).fold(first, |x, _| step(x))
}
