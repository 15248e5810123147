//! Linear layers: `x · wᵀ (+ bias)`, `[T, cols]` to `[T, rows]`.
//!
//! The definition is a product in `f32` with decoded weights, in the summation order of [`dot`](crate::kernels::dot).

pub mod exact;
pub(crate) mod faults;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use zerocopy::FromBytes;

use crate::kernels::product::{RowSource, StridedRows, product};
use crate::quant::decode_matrix_row;
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};

/// Computes `x · wᵀ` in `f32` with decoded weights: `[T, cols]` to `[T, rows]`.
///
/// # Panics
/// If the rows of `x` are not as long as those of `w`.
pub(crate) fn linear(x: &Tensor, w: &Matrix) -> Tensor {
    product(StridedRows::rows_of(x), &DecodedRows::new(w, DType::F32))
}

/// The rows of a matrix, each weight rounded to `f32`, `bf16` or `f16`.
pub(crate) struct DecodedRows<'w> {
    w: &'w Matrix,
    rounded_to: DType,
}

impl<'w> DecodedRows<'w> {
    pub(crate) fn new(w: &'w Matrix, rounded_to: DType) -> Self {
        Self { w, rounded_to }
    }

    /// Returns a row without copying it, if it is stored as `f32`.
    fn stored(&self, index: usize) -> Option<&[f32]> {
        let is_stored = self.w.dtype == DType::F32 && self.is_as_stored();
        is_stored.then(|| <[f32]>::ref_from_bytes(self.w.row(index)).ok()).flatten()
    }

    /// Returns true if weights are the stored numbers, without a scale and without rounding.
    fn is_as_stored(&self) -> bool {
        self.w.dtype == self.rounded_to && self.w.scale() == 1.0
    }
}

impl RowSource for DecodedRows<'_> {
    fn rows(&self) -> usize {
        self.w.rows
    }

    fn columns(&self) -> usize {
        self.w.cols
    }

    fn row<'r>(&'r self, index: usize, scratch: &'r mut [f32]) -> &'r [f32] {
        if let Some(row) = self.stored(index) {
            return row;
        }
        decode_matrix_row(self.w, index, scratch);
        match self.rounded_to {
            _ if self.is_as_stored() => (),
            DType::BF16 => round::<bf16>(scratch),
            DType::F16 => round::<f16>(scratch),
            _ => (),
        }
        scratch
    }
}

/// Rounds numbers to a smaller type and back, many at once.
fn round<T: Copy + Default>(values: &mut [f32])
where
    [T]: HalfFloatSliceExt,
{
    let mut short = [T::default(); 64];
    for values in values.chunks_mut(short.len()) {
        let short = &mut short[..values.len()];
        short.convert_from_f32_slice(values);
        short.convert_to_f32_slice(values);
    }
}
