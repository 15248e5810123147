//! Decay of the state of linear attention, as a logarithm: `g = -exp(A_log) · softplus(a + bias)` (Yang et al., 2024), with
//! two numbers `A_log` and `bias` of each head. `[T, H]` to `[T, H]`.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::tensor::Tensor;

/// Parameters of a layer's decay.
#[derive(Clone, Debug, PartialEq)]
pub struct DecayRates {
    /// `A_log` of each head, or `-exp(A_log)`: `[H]`.
    pub(crate) rates: Vec<f32>,
    /// True if `rates` are `A_log`, as in Hugging Face files. False if they are `-exp(A_log)`, as in GGUF files.
    pub(crate) are_logarithms: bool,
    /// `[H]`
    pub(crate) bias: Vec<f32>,
}

impl DecayRates {
    /// Computes the logarithms of the decay in `f32`, with the given form of softplus.
    pub(crate) fn of(&self, a: &Tensor, softplus: fn(f32) -> f32) -> Tensor {
        let heads = self.bias.len();
        let rates: Vec<f32> = match self.are_logarithms {
            true => self.rates.iter().map(|rate| -rate.exp()).collect(),
            false => self.rates.clone(),
        };
        let of_row = |row: usize, out: &mut [f32]| {
            for (head, out) in out.iter_mut().enumerate() {
                let x = a.data()[row * heads + head] + self.bias[head];
                *out = softplus(x) * rates[head];
            }
        };
        Tensor::from_rows(a.data().len() / heads, heads, of_row).reshaped(a.shape())
    }
}
