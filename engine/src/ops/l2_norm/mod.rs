//! L2 norm of rows, such as queries and keys of linear attention: `x / sqrt(Σ x² + eps)`, or `x / max(sqrt(Σ x²), eps)` in
//! torch's `normalize` and old versions of llama.cpp. `[T, H, D]` to the same shape.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::ops::norm::per_row;
use crate::tensor::Tensor;

/// L2 norm of rows of `width` values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct L2Norm {
    /// Number of values of a row.
    pub(crate) width: usize,
    /// Epsilon.
    pub(crate) eps: f32,
    /// True if epsilon is a lower limit of the divisor. False if epsilon is added to the sum of squares.
    pub(crate) is_least: bool,
}

impl L2Norm {
    /// Returns the factor of a row with this sum of squares.
    fn factor(&self, squares: f32) -> f32 {
        match self.is_least {
            true => 1.0 / squares.sqrt().max(self.eps),
            false => 1.0 / (squares + self.eps).sqrt(),
        }
    }

    /// Computes the norm. Squares are `f32`, summed in `f64`, as in ggml; the rest is `f32`.
    pub(crate) fn of(&self, x: &Tensor) -> Tensor {
        per_row(x, self.width, |x, out| {
            let squares: f64 = x.iter().map(|&x| f64::from(x * x)).sum();
            let factor = self.factor(squares as f32);
            out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
        })
    }
}
