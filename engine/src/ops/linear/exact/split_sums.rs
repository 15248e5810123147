//! Exact evaluation of a product whose sum is split into parts that are each rounded to a short type (split-K
//! kernels).

use crate::exact::{ExactValue, Float, Operation, Profile};
use crate::ops::linear::exact::Linear;
use crate::tensor::Tensor;

/// `x · wᵀ (+ bias)`, `[T, cols]` to `[T, rows]`. Each part sums consecutive columns and is rounded. The parts are
/// added in order, in the short type.
pub(crate) struct SplitSums {
    pub(crate) product: Linear,
    /// Number of columns of a part, at least 1.
    pub(crate) width: usize,
    /// Type that the parts and the sums of parts are rounded to.
    pub(crate) short: Float,
}

impl Operation for SplitSums {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (Some(&first), Some(&last)) = (wanted.first(), wanted.last()) else { return Vec::new() };
        let (rows, profile) = (self.product.w.rows, &profile.of_product(&self.product.w));
        let tokens = self.product.operands(profile, first / rows..last / rows + 1);
        self.product.by_output(profile, &tokens, wanted, |row, x, output| {
            let rounded = |sum: ExactValue| sum.rounded(self.short);
            let mut parts = row.parts(self.width, x, profile).map(rounded);
            let first = parts.next().unwrap_or_default();
            let add = |a: ExactValue, b: ExactValue| {
                rounded(ExactValue::bounded(a.value + b.value, a.radius + b.radius))
            };
            let sum = parts.fold(first, add);
            self.product.bias(output, profile).map_or(sum, |bias| sum.plus(bias))
        })
    }

    fn is_light(&self) -> bool {
        false
    }

    fn inputs(&self) -> Vec<&Tensor> {
        self.product.inputs()
    }
}
