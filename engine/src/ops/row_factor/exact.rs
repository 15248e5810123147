//! Exact evaluation of a product of a row and its factor.

use std::ops::Range;

use crate::exact::input::InputTensor;
use crate::exact::value::{K, U};
use crate::exact::{ExactValue, Operation, Profile};
use crate::ops::row_factor::{QueryTemperature, repeats};
use crate::tensor::Tensor;

/// Number of roundings in a temperature: two in the logarithm, and one each in its argument, the product and the
/// sum.
const ROUNDINGS: f64 = 5.0;

/// Multiplies each row by its factors.
pub(crate) struct RowProduct {
    /// `[T, ...]`
    pub(crate) x: Tensor,
    /// `[T]`, or `[T, k]` for several products of each row
    pub(crate) factors: Tensor,
    /// Settings and positions from which the factors are computed, if they are temperatures; `None` for other factors.
    pub(crate) temperature: Option<(QueryTemperature, Range<usize>)>,
}

impl Operation for RowProduct {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let [x, factors] = [&self.x, &self.factors].map(|x| InputTensor::of(x, profile));
        let (width, (each, _)) = (self.x.row_len(), repeats(&self.x, &self.factors));
        let one = |&flat: &usize| {
            let factor = factors.get(flat / width);
            // Engines compute the temperature in `f32`.
            let error = if self.temperature.is_some() { ROUNDINGS * U * factor.value.abs() } else { 0.0 };
            let row = flat / width / each;
            let factor = factor.moved(K * error, error);
            let is_rounded = self.temperature.as_ref().is_some_and(|(temperature, _)| temperature.is_rounded);
            // Not every engine rounds a factor that the architecture's authors round.
            let factor = if is_rounded { factor.or(factor.rounded(profile.results)) } else { factor };
            factor.times(x.get(row * width + flat % width))
        };
        wanted.iter().map(one).collect()
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x, &self.factors]
    }
}
