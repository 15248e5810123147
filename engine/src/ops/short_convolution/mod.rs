//! Causal convolution of each channel over the latest tokens (depthwise; as in Mamba, Gu and Dao, 2023, and LFM2, Liquid
//! AI, 2025): `y[t, c] = Σ_i w[c, i] · x[t - k + 1 + i, c] + b[c]`, for a kernel of k weights. `x`, `[k - 1 + T, C]`,
//! begins with the inputs that the layer has kept, or with zeros.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::tensor::Tensor;

/// Longest supported kernel.
pub(crate) const LONGEST_KERNEL: usize = 64;

/// A causal convolution of each channel.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvolution {
    /// `[C, k]`; the last weight of a channel belongs to the token itself.
    pub weight: Vec<f32>,
    /// `[C]`, if the convolution has a bias.
    pub bias: Option<Vec<f32>>,
    /// Number of weights of a channel, k.
    pub kernel: usize,
}

impl ShortConvolution {
    /// Returns the convolution of some channels, in the given order.
    pub(crate) fn gathered(&self, channels: &[usize]) -> Self {
        let kernel = self.kernel;
        let weight = channels.iter().flat_map(|channel| &self.weight[channel * kernel..][..kernel]);
        let bias = self.bias.as_ref().map(|bias| channels.iter().map(|&channel| bias[channel]).collect());
        Self { weight: weight.copied().collect(), bias, kernel }
    }

    /// Computes the convolution, `[k - 1 + T, C]` to `[T, C]`: adds from the earliest input on, then the bias. As in ggml,
    /// products of whole groups of four inputs are rounded before they are added.
    pub(crate) fn of(&self, x: &Tensor) -> Tensor {
        let (channels, kernel) = (x.row_len(), self.kernel);
        let whole = kernel / 4 * 4;
        Tensor::from_rows(x.rows() + 1 - kernel, channels, |token, out| {
            for (channel, out) in out.iter_mut().enumerate() {
                let weights = &self.weight[channel * kernel..][..kernel];
                let sum = weights.iter().enumerate().fold(0.0f32, |sum, (at, &weight)| {
                    let x = x.data()[(token + at) * channels + channel];
                    if at < whole { sum + x * weight } else { x.mul_add(weight, sum) }
                });
                *out = sum + self.bias.as_ref().map_or(0.0, |bias| bias[channel]);
            }
        })
    }
}
