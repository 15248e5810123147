//! Product of a row and a factor of its own: `[T, ...]` and `[T]` to the same shape, or `[T, d]` and `[T, k]` to `[T, k, d]`.
//!
//! Llama 4 (Meta, 2025) multiplies queries by a temperature of their position, and the input of each chosen expert by the
//! expert's weight.

pub(crate) mod exact;
pub(crate) mod faults;

use std::ops::Range;

use crate::parallel;
use crate::tensor::Tensor;

/// Temperature of queries by position: `1 + scale · ln(1 + ⌊(position + 1) / floor⌋)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryTemperature {
    /// Number of positions with the same temperature.
    pub floor: usize,
    /// Factor of the logarithm.
    pub scale: f32,
}

impl QueryTemperature {
    /// Constants of llama.cpp.
    pub(crate) const LLAMA_CPP: Self = Self { floor: 8192, scale: 0.1 };

    /// Returns the factors of the positions of a pass: `[T]`.
    pub(crate) fn factors(&self, positions: Range<usize>) -> Tensor {
        let factor = |position: usize| {
            let steps = (position + 1) / self.floor.max(1);
            (1.0 + f64::from(self.scale) * (steps as f64).ln_1p()) as f32
        };
        Tensor::new(&[positions.len()], positions.map(factor).collect())
    }
}

/// Multiplies each row of `x` by its factors, `[T]` or `[T, k]`. `round` is applied to each product.
pub(crate) fn scaled(x: &Tensor, factors: &Tensor, round: impl Fn(f32) -> f32 + Sync) -> Tensor {
    let width = x.row_len();
    let (each, shape) = repeats(x, factors);
    let mut data = vec![0.0; factors.data().len() * width];
    parallel::chunks(&mut data, width, width, |row, out| {
        let factor = factors.data()[row];
        out.iter_mut().zip(x.row(row / each)).for_each(|(out, x)| *out = round(x * factor));
    });
    Tensor::new(&shape, data)
}

/// Returns the number of factors of each row, and the shape of the result.
pub(crate) fn repeats(x: &Tensor, factors: &Tensor) -> (usize, Vec<usize>) {
    match factors.shape() {
        &[tokens, each] => (each, vec![tokens, each, x.row_len()]),
        _ => (1, x.shape().to_vec()),
    }
}
