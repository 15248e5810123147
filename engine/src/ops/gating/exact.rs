//! Exact evaluation of a product with a gate.

use crate::exact::input::InputTensor;
use crate::exact::{Choice, ExactValue, Operation, Profile};
use crate::tensor::Tensor;

/// `gate · x`: `[T, n · C]` and `[T, C]` to `[T, C]`.
pub(crate) struct GatedProduct {
    /// Projection that contains the gate as one of its parts, `[T, n · C]`.
    pub(crate) projected: Tensor,
    /// Index of the part of a row that contains the gate.
    pub(crate) part: usize,
    /// Value that the gate multiplies, `[T, C]`.
    pub(crate) x: Tensor,
}

impl GatedProduct {
    /// Returns true if the gate consists of factors from the model file, the same in each row.
    pub(crate) fn has_factors(&self) -> bool {
        self.part == 0 && self.projected.origins().is_empty() && self.projected.shape() == self.x.shape()
    }
}

impl Operation for GatedProduct {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let [projected, x] = [&self.projected, &self.x].map(|x| InputTensor::of(x, profile));
        let (all, width) = (self.projected.row_len(), self.x.row_len());
        let gate = |flat: usize| projected.get(flat / width * all + self.part * width + flat % width);
        wanted.iter().map(|&flat| gate(flat).times(x.get(flat))).collect()
    }

    fn choices(&self) -> &'static [Choice] {
        if self.has_factors() { &[Choice::ChainedNorms] } else { &[] }
    }

    fn is_fused(&self) -> bool {
        self.has_factors()
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.projected, &self.x]
    }
}
