//! Exact evaluation of a Hadamard transform.

use crate::exact::dot::dot;
use crate::exact::input::InputTensor;
use crate::exact::operation::by_row;
use crate::exact::{ExactValue, Float, Operation, Profile};
use crate::tensor::Tensor;

/// Hadamard transform of each `len` neighbouring values.
pub(crate) struct HadamardTransform {
    /// Transformed value.
    pub(crate) x: Tensor,
    /// Number of values that are transformed together, a power of two.
    pub(crate) len: usize,
}

impl Operation for HadamardTransform {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (x, len) = (InputTensor::of(&self.x, profile), self.len);
        let scale = 1.0 / (len as f32).sqrt();
        let of_part = |flats: &[usize]| {
            let part = x.part(flats[0] / len * len, len);
            let one = |flat: &usize| {
                let is_negative = |at: usize| (at & (flat % len)).count_ones() & 1 == 1;
                let sign = |at: usize| if is_negative(at) { -scale } else { scale };
                let row: Vec<f32> = (0..len).map(sign).collect();
                dot(&part, &InputTensor::Given(&row).part(0, len))
            };
            flats.iter().map(one).collect::<Vec<_>>()
        };
        by_row(wanted, len).flat_map(of_part).collect()
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}
