//! Exact evaluation of the decay of linear attention.

use crate::exact::input::InputTensor;
use crate::exact::value::{K, U};
use crate::exact::{ExactValue, Float, Operation, Profile};
use crate::ops::decay::DecayRates;
use crate::tensor::Tensor;

/// Logarithms of the decay of each head and token: `[T, H]`.
pub(crate) struct Decay {
    /// `[T, H]`
    pub(crate) a: Tensor,
    /// Parameters.
    pub(crate) rates: DecayRates,
}

impl Operation for Decay {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let a = InputTensor::of(&self.a, profile);
        let (heads, ulps) = (self.rates.bias.len(), profile.library_ulps);
        let of = |&flat: &usize| {
            let stored = |values: &[f32]| profile.weights.round(values[flat % heads].into());
            let x = a.get(flat).plus(stored(&self.rates.bias));
            let (rate, of_rate) = match self.rates.are_logarithms {
                true => (-stored(&self.rates.rates).exp(), 2.0 * ulps * U),
                false => (f64::from(self.rates.rates[flat % heads]), 0.0),
            };
            let e = x.value.exp();
            let (softplus, slope) = if e.is_finite() { (e.ln_1p(), e / (1.0 + e)) } else { (x.value, 1.0) };
            // The exponential, the sum 1 + e^x, which ggml rounds before the logarithm, and the logarithm.
            let own = U * (2.0 * ulps * slope + 1.0 + 2.0 * ulps * softplus);
            let steep = slope + 0.25 * x.radius.min(1.0);
            let softplus = ExactValue::bounded(softplus, own).moved(x.sigma * steep, x.radius * steep);
            let value = softplus.value * rate;
            let off = value.abs() * (of_rate + U);
            softplus.through(value, rate).moved(K * off, off)
        };
        wanted.iter().map(of).collect()
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.a]
    }
}
