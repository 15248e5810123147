//! Hadamard transform of parts of a row, which spreads large values before a cache is quantised: `[T, H, D]` to the same
//! shape. It is its own inverse.

pub(crate) mod exact;

use crate::tensor::Tensor;

/// Transforms each `len` neighbouring values, `len` being a power of two, as ggml does: values are scaled first, then
/// added and subtracted at distances 1, 2, 4 and so on.
pub(crate) fn transformed(x: &Tensor, len: usize) -> Tensor {
    let scale = 1.0 / (len as f32).sqrt();
    let mut data: Vec<f32> = x.data().iter().map(|value| value * scale).collect();
    for part in data.chunks_exact_mut(len) {
        let mut apart = 1;
        while apart < len {
            for pair in part.chunks_exact_mut(2 * apart) {
                let (low, high) = pair.split_at_mut(apart);
                for (low, high) in low.iter_mut().zip(high) {
                    (*low, *high) = (*low + *high, *low - *high);
                }
            }
            apart *= 2;
        }
    }
    Tensor::new(x.shape(), data)
}
