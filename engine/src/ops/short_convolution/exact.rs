//! Exact evaluation of a short convolution.

use crate::exact::dot::dot;
use crate::exact::input::{InputTensor, InputValues};
use crate::exact::operation::per_row;
use crate::exact::value::{K, U};
use crate::exact::{ExactValue, Operands, Operation, Profile};
use crate::ops::short_convolution::ShortConvolution;
use crate::tensor::Tensor;

/// A causal convolution of each channel: `[k - 1 + T, C]` to `[T, C]`.
pub(crate) struct Convolution {
    /// `[k - 1 + T, C]`
    pub(crate) x: Tensor,
    /// Kernels and biases.
    pub(crate) conv: ShortConvolution,
}

impl Operation for Convolution {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (channels, kernel) = (self.x.row_len(), self.conv.kernel);
        // Convolutions of single channels do not use matrix units, except in torch's autocast, which converts operands.
        let operands = match profile.operands {
            Operands::F16 | Operands::Bf16 => profile.unit_of_products(),
            _ => profile.weights,
        };
        let x = InputTensor::of(&self.x, profile);
        let x = if operands == profile.weights { x } else { x.rounded(operands) };
        let one = |&flat: &usize| {
            let channel = flat % channels;
            let weights = &self.conv.weight[channel * kernel..][..kernel];
            let weights = weights.iter().map(|&w| ExactValue::sure(operands.round(w.into())));
            let inputs = (0..kernel).map(|at| x.get(flat + at * channels));
            let sum = dot(&InputValues::new(weights), &InputValues::new(inputs));
            let Some(bias) = &self.conv.bias else { return sum };
            let bias = operands.round(bias[channel].into());
            // An engine may begin the sum with the bias.
            let first = U * bias.abs();
            let n = kernel as f64;
            sum.rounded(profile.biased).plus(bias).moved(K * n.sqrt() * first, n * first)
        };
        per_row(wanted, channels, |flats, exacts| exacts.extend(flats.iter().map(one)))
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}
