//! Values in another order, or each by itself through a function: what engines do that none of the operations does.

use crate::exact::float::Float;
use crate::exact::input::Known;
use crate::exact::profile::Profile;
use crate::exact::stage::Stage;
use crate::exact::value::{Exact, U};
use crate::tensor::Tensor;

/// Values of several tensors, in any order.
pub(super) struct Gathered {
    pub(super) tensors: Vec<Tensor>,
    /// Tensor and index of the value for each result.
    pub(super) index: Vec<(usize, usize)>,
}

impl Stage for Gathered {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<Exact> {
        let known: Vec<Known> = self.tensors.iter().map(|tensor| Known::of(tensor, profile)).collect();
        let at = |&flat: &usize| {
            let (tensor, flat) = self.index[flat];
            known[tensor].get(flat)
        };
        wanted.iter().map(at).collect()
    }

    /// Returns `F32`, since the values were rounded before.
    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        self.tensors.iter().collect()
    }
}

/// `f(x, parameter)`, value by value: a few roundings of the result, as library functions have.
pub(super) struct Mapped {
    pub(super) x: Tensor,
    pub(super) f: fn(f64, f64) -> f64,
    pub(super) parameter: f64,
}

impl Stage for Mapped {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<Exact> {
        let x = Known::of(&self.x, profile);
        let one = |&flat: &usize| {
            let x = x.get(flat);
            let [value, low, high] =
                [x.value, x.value - x.radius, x.value + x.radius].map(|x| (self.f)(x, self.parameter));
            let inherited = (low - value).abs().max((high - value).abs());
            let own = (2.0 * profile.library_ulps + 4.0) * U * value.abs();
            Exact::bounded(value, own).moved(inherited / 2.0, inherited)
        };
        wanted.iter().map(one).collect()
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}
