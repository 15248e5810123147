//! Product of a value and a gate, `gate · x`, elementwise. The gate is one part of a projection that also computes
//! other values: `[T, n · C]` and `[T, C]` to `[T, C]`, as in LFM2's convolution (Liquid AI, 2025).

pub(crate) mod exact;
pub(crate) mod faults;

use crate::parallel;
use crate::tensor::Tensor;

/// Multiplies `x`, `[T, C]`, by part number `part` of `projected`, `[T, n · C]`. `round` is applied to each
/// product.
pub(crate) fn gated(
    projected: &Tensor,
    part: usize,
    x: &Tensor,
    round: impl Fn(f32) -> f32 + Sync,
) -> Tensor {
    let width = x.row_len();
    let mut data = x.data().to_vec();
    parallel::chunks(&mut data, width, width, |token, out| {
        let gates = &projected.row(token)[part * width..][..width];
        out.iter_mut().zip(gates).for_each(|(x, gate)| *x = round(gate * *x));
    });
    Tensor::new(x.shape(), data)
}
