//! Exact evaluation of elementwise sums.

use crate::exact::input::InputTensor;
use crate::exact::operation::rows_around;
use crate::exact::value::{K, U, both};
use crate::exact::{Choice, ExactValue, Float, Operation, Profile, is_given};
use crate::tensor::Tensor;

/// `a + b`.
pub(crate) struct Addition {
    /// First summand.
    pub(crate) a: Tensor,
    /// Second summand.
    pub(crate) b: Tensor,
}

impl Operation for Addition {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let [a, b] = [&self.a, &self.b].map(|x| InputTensor::read(x, profile, rows_around(wanted, 1)));
        let add = |&flat: &usize| {
            let (a, b) = (a.get(flat), b.get(flat));
            let value = a.value + b.value;
            ExactValue { value, sigma: both(a.sigma, b.sigma), radius: a.radius + b.radius }
                .moved(K * U * value.abs(), U * value.abs())
        };
        wanted.iter().map(add).collect()
    }

    fn results(&self, profile: &Profile) -> Float {
        if profile.wide_sums { Float::F32 } else { profile.stream() }
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.a, &self.b]
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::ChainedNorms, Choice::Chained, Choice::WideSums]
    }

    fn is_sum(&self) -> bool {
        true
    }

    fn is_unbiased(&self, _: &Profile) -> bool {
        is_given(&self.a) && is_given(&self.b)
    }

    fn is_fused(&self) -> bool {
        true
    }
}
