//! Addition: `a + b`, elementwise, for the residual stream (He et al., 2016) and learned positions.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::kernels::elementwise::zip;
use crate::tensor::Tensor;

/// Computes `a + b` in `f32`.
///
/// # Panics
/// If the shapes differ.
pub(crate) fn add(a: &Tensor, b: &Tensor) -> Tensor {
    zip(a, b, |a, b| a + b)
}
