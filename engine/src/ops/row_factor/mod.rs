//! Product of a row and a factor of its own: `[T, ...]` and `[T]` to the same shape, or `[T, d]` and `[T, k]` to `[T, k, d]`.
//!
//! Llama 4 (Meta, 2025) and Ministral 3 (Mistral AI, 2025) multiply queries by a temperature of their position. Llama 4
//! multiplies the input of each chosen expert by the expert's weight.

pub(crate) mod exact;
pub(crate) mod faults;

use std::ops::Range;

use crate::parallel;
use crate::tensor::Tensor;

/// Temperature of queries by position: `1 + scale · ln(1 + ⌊(position + offset) / floor⌋)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryTemperature {
    /// Number of positions with the same temperature.
    pub floor: usize,
    /// Factor of the logarithm.
    pub scale: f32,
    /// Number that is added to a position before the logarithm.
    pub(crate) offset: usize,
    /// True if the architecture's authors round temperatures to the type of activations.
    pub(crate) is_rounded: bool,
    /// True if layers with RoPE have the temperature, too.
    pub(crate) is_of_all_layers: bool,
}

impl QueryTemperature {
    /// Llama 4's temperature, with the constants of llama.cpp.
    pub(crate) const LLAMA4: Self =
        Self { floor: 8192, scale: 0.1, offset: 1, is_rounded: false, is_of_all_layers: false };
    /// Ministral 3's temperature, whose constants are in the files.
    pub(crate) const MINISTRAL3: Self =
        Self { floor: 0, scale: 0.0, offset: 0, is_rounded: true, is_of_all_layers: true };

    /// Returns the factors of the positions of a pass: `[T]`.
    pub(crate) fn factors(&self, positions: Range<usize>) -> Tensor {
        let factor = |position: usize| {
            let steps = (position + self.offset) / self.floor.max(1);
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
