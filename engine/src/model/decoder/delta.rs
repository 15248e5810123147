//! Linear attention with a gated delta rule in place of attention (Qwen3-Next, Qwen 3.5; Yang et al., 2024): a
//! short convolution of queries, keys and values, and a norm of the output, which a gate multiplies.
//!
//! Hugging Face files of Qwen3-Next have one matrix for queries, keys, values and gates, grouped by key head, and
//! one for the logits of beta and decay. GGUF files have one for queries, keys and values of all heads, and one for
//! gates. Files of Qwen 3.5 have four matrices; its GGUF files store value heads in another order.

use std::ops::Range;

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::{RecurrentLayer, RecurrentSizes};
use crate::model::decoder::columns::columns;
use crate::model::decoder::{DecoderConfig, LayerWeights, Projection};
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::decay::DecayRates;
use crate::ops::delta_rule::DeltaTokens;
use crate::ops::l2_norm::L2Norm;
use crate::ops::norm::{Gain, RmsNorm};
use crate::ops::short_convolution::ShortConvolution;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Sizes of linear attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeltaSizes {
    /// Query and key heads, Hk.
    pub(crate) key_heads: usize,
    /// Heads of values and of the state, H: a multiple of Hk.
    pub(crate) heads: usize,
    /// Number of values in a query or key head, Dk.
    pub(crate) key: usize,
    /// Number of values in a value head, Dv.
    pub(crate) value: usize,
    /// Number of weights of each channel of the convolution.
    pub(crate) kernel: usize,
    /// Norm of queries and keys.
    pub(crate) norm: L2Norm,
    /// Layout of the matrices in the architecture's files.
    pub(crate) layout: DeltaLayout,
}

/// Layout of linear attention's matrices in the files of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeltaLayout {
    /// Qwen3-Next: fused matrices with a group of rows for each key head.
    Grouped,
    /// Qwen 3.5: one matrix for queries, keys and values, and one each for gates, beta and decay. GGUF files store the
    /// first value head of every key head, then the second one of every key head, and so on.
    Separate,
}

impl DeltaSizes {
    /// Returns the sizes of a layer's state.
    pub(crate) fn state(&self) -> RecurrentSizes {
        let matrices = [self.heads, self.value, self.key];
        RecurrentSizes { channels: self.channels(), kept: self.kernel - 1, matrices, has_limits: false }
    }

    /// Returns the number of convolution channels: the values of a token's queries, keys and values.
    fn channels(&self) -> usize {
        2 * self.key_heads * self.key + self.heads * self.value
    }

    /// Returns the index of each value head in a file.
    fn places(&self, is_gguf: bool) -> Vec<usize> {
        let each = self.heads / self.key_heads;
        let place = |head: usize| match is_gguf && self.layout == DeltaLayout::Separate {
            true => head % each * self.key_heads + head / each,
            false => head,
        };
        (0..self.heads).map(place).collect()
    }
}

/// Weights of linear attention.
#[derive(Clone, Debug)]
pub(crate) struct DeltaAttention {
    sizes: DeltaSizes,
    /// `[2·Hk·Dk + H·Dv, d]`
    qkv: Projection,
    /// `[H·Dv, d]`
    gate: Projection,
    /// `[H, d]`
    beta: Projection,
    /// `[H, d]`
    decay: Projection,
    conv: ShortConvolution,
    rates: DecayRates,
    /// `[Dv]`
    norm: RmsNorm,
    /// `[d, H·Dv]`
    output: Projection,
    /// Value head that each group of `Dv` columns of the output projection belongs to.
    output_heads: Vec<usize>,
}

impl DeltaAttention {
    /// Loads the weights of a layer.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub(crate) fn load(c: &DecoderConfig, sizes: DeltaSizes, w: &mut LayerWeights) -> Result<Self> {
        let (d, DeltaSizes { key_heads, heads, key, value, .. }) = (c.hidden_size, sizes);
        let (each, width, keys) = (heads / key_heads, heads * value, 2 * key_heads * key);
        let places = sizes.places(w.is_gguf());
        let channels: Vec<usize> =
            (0..keys).chain(rows_of(&places, value).into_iter().map(|row| keys + row)).collect();
        let [qkv, gate] = match w.is_gguf() || sizes.layout == DeltaLayout::Separate {
            true => [
                w.projection("attn_qkv", false, sizes.channels(), d)?.gathered(&channels),
                w.projection("attn_gate", false, width, d)?.gathered(&rows_of(&places, value)),
            ],
            false => {
                let whole = w.projection("attn_qkvz", false, sizes.channels() + width, d)?;
                let of = |part| grouped(key_heads, &[key, key, each * value, each * value], part);
                let qkv: Vec<usize> = [0, 1, 2].into_iter().flat_map(of).collect();
                [whole.gathered(&qkv), whole.gathered(&of(3))]
            }
        };
        let [beta, decay] = match sizes.layout {
            DeltaLayout::Separate => [
                w.projection("ssm_beta", false, heads, d)?.gathered(&places),
                w.projection("ssm_alpha", false, heads, d)?.gathered(&places),
            ],
            DeltaLayout::Grouped => {
                let both = w.projection("ssm_ba", false, 2 * heads, d)?;
                [0, 1].map(|part| both.gathered(&grouped(key_heads, &[each, each], part)))
            }
        };
        let of_heads = |values: Vec<f32>| places.iter().map(|&place| values[place]).collect();
        let mut output_heads = vec![0; heads];
        places.iter().enumerate().for_each(|(head, &place)| output_heads[place] = head);
        Ok(Self {
            sizes,
            qkv,
            gate,
            beta,
            decay,
            conv: w.convolution("ssm_conv1d", false, sizes.channels(), sizes.kernel)?.gathered(&channels),
            rates: DecayRates {
                rates: of_heads(w.vector("ssm_a", heads)?),
                are_logarithms: !w.is_gguf(),
                bias: of_heads(w.bias("ssm_dt", heads)?),
            },
            norm: RmsNorm {
                weight: w.vector("ssm_norm", value)?,
                eps: c.norm_eps,
                gain: Gain::Weight,
                groups: 1,
            },
            output: w.projection("ssm_out", false, d, width)?,
            output_heads,
        })
    }

    /// Returns the matrices, with names for messages.
    pub(crate) fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let all = [
            ("attn_qkv", &self.qkv),
            ("attn_gate", &self.gate),
            ("ssm_ba", &self.beta),
            ("ssm_ba", &self.decay),
            ("ssm_out", &self.output),
        ];
        all.map(|(name, projection)| (name, &projection.weight)).into()
    }

    /// Computes linear attention of normed tokens, `[T, d]`, with its output projection.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        n: &dyn Numerics,
        t: &mut Probe,
        state: &mut RecurrentLayer,
    ) -> Tensor {
        let DeltaSizes { heads, value, norm, .. } = self.sizes;
        let qkv = t.tap(ConvIn, self.qkv.of(n, x));
        let gate = t.tap(MixerGate, self.gate.of(n, x));
        let beta = t.tap(BetaLogit, self.beta.of(n, x));
        let decay = t.tap(DecayLogit, self.decay.of(n, x));
        let mixed = t.tap(ConvOut, n.short_convolution(&state.extended(&qkv), &self.conv));
        let mixed = t.tap(ConvAct, n.activation(&mixed, Activation::Silu));
        let [q, k, v] = self.heads_of(n, &mixed);
        let mut unit = |point, x: &Tensor| {
            let merged = n.l2_norm(x, norm).reshaped(&[x.rows(), x.row_len()]);
            t.tap(point, merged).reshaped(x.shape())
        };
        let tokens = DeltaTokens {
            q: unit(QUnit, &q),
            k: unit(KUnit, &k),
            v,
            beta: t.tap(Beta, n.activation(&beta, Activation::Sigmoid)),
            decay: t.tap(Decay, n.decay(&decay, &self.rates)),
        };
        let [matrices, out] = n.delta_rule(&tokens, &state.matrices());
        state.keep(t.tap(RecurrentState, matrices));
        let out = t.tap(RecurrentOut, out.reshaped(&[x.rows(), heads * value]));
        let gated = t.tap(RecurrentNorm, n.silu_gated(&n.rms_norm(&out, &self.norm), &gate));
        t.tap(AttnOut, self.output.of(n, &self.in_file_order(n, gated)))
    }

    /// Reorders the values of all heads, `[T, H·Dv]`, to match the columns of the output projection.
    fn in_file_order(&self, n: &dyn Numerics, x: Tensor) -> Tensor {
        if self.output_heads.is_sorted() {
            return x;
        }
        let (width, value) = (x.row_len(), self.sizes.value);
        let column = |at: usize| self.output_heads[at / value] * value + at % value;
        n.rearranged(&[&x], x.shape(), &|flat| (0, flat / width * width + column(flat % width)))
    }

    /// Splits convolved values, `[T, 2·Hk·Dk + H·Dv]`, into queries and keys, `[T, Hk, Dk]`, and values, `[T, H, Dv]`.
    fn heads_of(&self, n: &dyn Numerics, mixed: &Tensor) -> [Tensor; 3] {
        let DeltaSizes { key_heads, heads, key, value, .. } = self.sizes;
        let of = |first: usize, heads: usize, width: usize| {
            columns(n, mixed, first, heads * width).reshaped(&[mixed.rows(), heads, width])
        };
        let keys = key_heads * key;
        [of(0, key_heads, key), of(keys, key_heads, key), of(2 * keys, heads, value)]
    }
}

/// Returns the row indices of these heads. Each head has `width` rows.
fn rows_of(heads: &[usize], width: usize) -> Vec<usize> {
    heads.iter().flat_map(|head| head * width..(head + 1) * width).collect()
}

/// Returns the row indices of one part of a fused matrix. Each group of rows has `parts[i]` rows of part `i`.
pub(super) fn grouped(groups: usize, parts: &[usize], part: usize) -> Vec<usize> {
    let (all, first): (usize, usize) = (parts.iter().sum(), parts[..part].iter().sum());
    let of_group = |group: usize| -> Range<usize> { group * all + first..group * all + first + parts[part] };
    (0..groups).flat_map(of_group).collect()
}
