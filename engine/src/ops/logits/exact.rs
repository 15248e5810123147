//! Exact evaluation of the last row of logits and of probabilities.

use crate::exact::input::InputTensor;
use crate::exact::value::{K, U};
use crate::exact::{Choice, ExactValue, Float, LAMBDA, Operation, Profile};
use crate::ops::attention::exact::softmax;
use crate::tensor::Tensor;

/// The last row of logits.
pub(crate) struct LastRow {
    /// `[T, V]`
    pub(crate) logits: Tensor,
}

impl Operation for LastRow {
    fn at(&self, _: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let last = self.logits.row(self.logits.rows() - 1);
        wanted.iter().map(|&flat| ExactValue::sure(last[flat].into())).collect()
    }

    /// Returns `F32`, which adds no rounding, since the values were already rounded.
    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }
}

/// softmax(logits / temperature) of one row, always in `f32`.
pub(crate) struct Probabilities {
    /// `[V]`
    pub(crate) logits: Tensor,
    /// Divisor of the logits.
    pub(crate) temperature: f32,
}

impl Operation for Probabilities {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let temperature = f64::from(self.temperature);
        let logits = InputTensor::of(&self.logits, profile).part(0, self.logits.data().len()).map(|x| {
            let value = x.value / temperature;
            let rounding = if temperature == 1.0 { 0.0 } else { U * value.abs() };
            x.through(value, 1.0 / temperature).moved(K * rounding, rounding)
        });
        let all = softmax(&logits, profile);
        let n = all.len() as f64;
        let spread = |exact: ExactValue| match profile.one_by_one {
            true => exact.moved(0.0, n * U * exact.value),
            false => exact.moved(K * U * n.sqrt() * exact.value, LAMBDA * K * U * n.sqrt() * exact.value),
        };
        wanted.iter().map(|&flat| spread(all[flat])).collect()
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::OneByOne]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.logits]
    }
}
