//! Exact evaluation of a shared expert's share in a mixture.

use crate::exact::input::InputTensor;
use crate::exact::value::{ExactValue, K, U, both};
use crate::exact::{Choice, Operation, Profile};
use crate::tensor::Tensor;

/// `routed + weight · output`, or `routed + output`: `[T, d]`, `[T, d]`, `[T]` to `[T, d]`.
pub(crate) struct SharedSum {
    /// Sum over the chosen experts, `[T, d]`.
    pub(crate) routed: Tensor,
    /// Outputs of the shared expert, `[T, d]`.
    pub(crate) outputs: Tensor,
    /// Weights of the shared expert, `[T]`, if it has any.
    pub(crate) weights: Option<Tensor>,
}

impl Operation for SharedSum {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let [routed, outputs] = [&self.routed, &self.outputs].map(|x| InputTensor::of(x, profile));
        let weights = self.weights.as_ref().map(|weights| InputTensor::of(weights, profile));
        let width = self.outputs.row_len();
        let one = |&flat: &usize| {
            let (routed, output) = (routed.get(flat), outputs.get(flat));
            let product = match &weights {
                Some(weights) => weights.get(flat / width).times(output).rounded(profile.weighted),
                None => output,
            };
            let value = routed.value + product.value;
            let radius = routed.radius + product.radius;
            ExactValue { value, sigma: both(routed.sigma, product.sigma), radius }
                .moved(K * U * value.abs(), U * value.abs())
        };
        wanted.iter().map(one).collect()
    }

    fn choices(&self) -> &'static [Choice] {
        if self.weights.is_some() { &[Choice::Weighted] } else { &[] }
    }

    fn inputs(&self) -> Vec<&Tensor> {
        [&self.routed, &self.outputs].into_iter().chain(&self.weights).collect()
    }
}
