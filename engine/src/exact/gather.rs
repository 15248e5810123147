//! Exact evaluation of reordered values and of elementwise functions. Used for faults that compute an operation
//! which no model has.

use std::sync::Arc;

use crate::exact::float::Float;
use crate::exact::input::InputTensor;
use crate::exact::operation::Operation;
use crate::exact::profile::Profile;
use crate::exact::value::{ExactValue, U};
use crate::tensor::Tensor;

/// Selected values of several tensors.
pub(crate) struct Gather {
    pub(crate) tensors: Vec<Tensor>,
    /// For each result, the tensor and the index of its value.
    pub(crate) index: Arc<[(usize, usize)]>,
}

impl Operation for Gather {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let known: Vec<InputTensor> =
            self.tensors.iter().map(|tensor| InputTensor::of(tensor, profile)).collect();
        let at = |&flat: &usize| {
            let (tensor, flat) = self.index[flat];
            known[tensor].get(flat)
        };
        wanted.iter().map(at).collect()
    }

    /// Returns `F32`, which adds no rounding, since the values were already rounded.
    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        self.tensors.iter().collect()
    }
}

/// Elementwise `f(x, parameter)`, with a few roundings of the result, as in library functions.
pub(crate) struct ElementwiseMap {
    pub(crate) x: Tensor,
    pub(crate) f: fn(f64, f64) -> f64,
    pub(crate) parameter: f64,
}

impl Operation for ElementwiseMap {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let x = InputTensor::of(&self.x, profile);
        let one = |&flat: &usize| {
            let x = x.get(flat);
            let [value, low, high] =
                [x.value, x.value - x.radius, x.value + x.radius].map(|x| (self.f)(x, self.parameter));
            let inherited = (low - value).abs().max((high - value).abs());
            let own = (2.0 * profile.library_ulps + 4.0) * U * value.abs();
            ExactValue::bounded(value, own).moved(inherited / 2.0, inherited)
        };
        wanted.iter().map(one).collect()
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}
