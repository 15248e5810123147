//! Kernels of a 16-bit type that round fewer or more steps than eager transformers models ([`Transformers`]): fused norms,
//! rotations, attention and activations, as in most serving engines.

use std::borrow::Cow;
use std::ops::Range;

use crate::kernels::elementwise::{per_column, zip};
use crate::numerics::delegate::delegate;
use crate::numerics::{F32, Numerics, Transformers};
use crate::ops::activation::{Activation, CUBIC, ClampedGlu, SQRT_2_OVER_PI};
use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction};
use crate::ops::norm::{Gain, LayerNorm, RmsNorm, rms_normed};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::scaling::Multiplier;
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// A difference in rounding between correct engines of a 16-bit type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedStep {
    /// RMSNorm does not round the normed row before its gain.
    Norms,
    /// RMSNorm rounds Gemma's gain, 1 + weight.
    Gains,
    /// Norms read sums before rounding, although the stream itself is stored rounded.
    Sums,
    /// Sums and rotations read the results of norms before rounding.
    NormResults,
    /// RoPE's cosines and sines are not rounded.
    Tables,
    /// RoPE does not round its products.
    Rotations,
    /// Attention rounds neither scores nor weights.
    Attention,
    /// The scale of attention is applied to the queries, which are then rounded.
    ScaledQueries,
    /// Activations are not rounded before the product with the up projection.
    Activations,
    /// Each step of an activation is rounded.
    ActivationSteps,
}

impl FusedStep {
    /// All differences.
    pub const ALL: [Self; 10] = [
        Self::Norms,
        Self::Gains,
        Self::Sums,
        Self::NormResults,
        Self::Tables,
        Self::Rotations,
        Self::Attention,
        Self::ScaledQueries,
        Self::Activations,
        Self::ActivationSteps,
    ];
}

/// Kernels that differ from eager transformers models in some steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusedKernels {
    numerics: Transformers,
    /// One entry per step in the order of [`FusedStep::ALL`]: true if the kernels differ in that step.
    steps: [bool; FusedStep::ALL.len()],
}

impl FusedKernels {
    /// Returns kernels that round like `numerics` in every step.
    pub fn new(numerics: Transformers) -> Self {
        Self { numerics, steps: [false; FusedStep::ALL.len()] }
    }

    /// Switches one step between the two ways of rounding.
    pub fn with_other(mut self, step: FusedStep) -> Self {
        self.steps[step as usize] ^= true;
        self
    }

    /// Returns true if some operations read results before rounding.
    pub fn reads_unrounded(&self) -> bool {
        self.has(FusedStep::Sums) || self.has(FusedStep::NormResults)
    }

    fn has(&self, step: FusedStep) -> bool {
        self.steps[step as usize]
    }

    fn rounded_unless(&self, step: FusedStep, x: Tensor) -> Tensor {
        if self.has(step) { x } else { self.numerics.rounded(x) }
    }

    /// Returns a value as the kernels of products read it: rounded, even if other kernels read it before rounding.
    fn stored<'x>(&self, x: &'x Tensor) -> Cow<'x, Tensor> {
        match self.reads_unrounded() {
            true => Cow::Owned(self.numerics.rounded(x.clone())),
            false => Cow::Borrowed(x),
        }
    }

    /// Computes `x · σ(x)` or GELU's tanh form, and rounds after each step. Constants are rounded too.
    fn stepwise(&self, x: &Tensor, activation: Activation) -> Tensor {
        let round = |x| self.numerics.round(x);
        match activation {
            Activation::Silu => x.clone().map(|x| round(x * round(1.0 / (1.0 + (-x).exp())))),
            Activation::GeluTanh | Activation::GeluNew | Activation::GeluFactored => x.clone().map(|x| {
                let cubic = round(round(CUBIC) * round(x * x * x));
                let inner = round(round(SQRT_2_OVER_PI) * round(x + cubic));
                round(round(0.5 * x) * round(1.0 + round(inner.tanh())))
            }),
            _ => self.numerics.activation(x, activation),
        }
    }
}

impl Numerics for FusedKernels {
    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor {
        let round = |x| self.numerics.round(x);
        let normed = rms_normed(x, norm.width(), norm.eps);
        let normed =
            if norm.gain == Gain::Weight { self.rounded_unless(FusedStep::Norms, normed) } else { normed };
        let weight = norm.weight.iter().map(|&weight| round(weight)).collect();
        let rounds_gains = self.has(FusedStep::Gains) && norm.gain == Gain::OnePlusWeight;
        let gains: Vec<f32> = RmsNorm { weight, ..*norm }.gains().collect();
        let gains = gains.into_iter().map(|gain| if rounds_gains { round(gain) } else { gain });
        self.rounded_unless(FusedStep::NormResults, per_column(normed, gains, |x, gain| x * gain))
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.numerics.linear(&self.stored(x), w)
    }

    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor {
        self.numerics.linear_of_pass(&self.stored(x), w, bias, tokens)
    }

    fn router_logits(&self, x: &Tensor, w: &Matrix, precision: RouterPrecision) -> Tensor {
        self.numerics.router_logits(&self.stored(x), w, precision)
    }

    fn linear_of_expert(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.numerics.linear_of_expert(&self.stored(x), w)
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        self.numerics.affine(&self.stored(x), w, bias)
    }

    fn bit_linear(&self, x: &Tensor, w: &Matrix, factor: Option<Factor>) -> Tensor {
        self.numerics.bit_linear(&self.stored(x), w, factor)
    }

    /// Adds a branch to the residual stream.
    fn add(&self, stream: &Tensor, branch: &Tensor) -> Tensor {
        self.rounded_unless(FusedStep::Sums, F32.add(&self.stored(stream), branch))
    }

    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable {
        match self.has(FusedStep::Tables) {
            true => F32.rope_table(rope, positions),
            false => self.numerics.rope_table(rope, positions),
        }
    }

    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor {
        match self.has(FusedStep::Rotations) {
            true => self.numerics.rounded(F32.rotate(x, table)),
            false => self.numerics.rotate(x, table),
        }
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        self.stored(&x).into_owned()
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        let (factor, unscaled) = (scale.factor(), AttentionScale::Products(1.0));
        let rounded = |x| self.rounded_unless(FusedStep::Attention, x);
        match self.has(FusedStep::ScaledQueries) {
            true => {
                let q = self.numerics.rounded(q.clone().map(|x| x * factor));
                rounded(F32.scores(&q, k, unscaled))
            }
            false => rounded(rounded(F32.scores(q, k, unscaled)).map(|x| x * factor)),
        }
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        self.rounded_unless(FusedStep::Attention, F32.softmax(scores, mask))
    }

    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor {
        match self.has(FusedStep::ActivationSteps) {
            true => self.stepwise(x, activation),
            false => self.numerics.activation(x, activation),
        }
    }

    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor {
        match self.has(FusedStep::Activations) && !self.has(FusedStep::ActivationSteps) {
            true => self.numerics.rounded(F32.gated(gate, up, activation)),
            false => zip(&self.activation(gate, activation), up, |gate, up| self.numerics.round(gate * up)),
        }
    }

    delegate!(
        numerics: name, weight_types, native_types, activation_type, cache_type, cache_noise, embed, scale, layer_norm,
        softmax_with_sinks, add_alibi, clamped_glu, context, likelihoods, scores_of_logits, expert_scores, choose, expert_weights, mix, shared_weights, add_shared, row_scaled, tempered, mix_streams, match_magnitude, mean_of_streams, sparse_gate, short_convolution, l2_norm, decay, delta_rule, silu_gated, gated_by_part, step_sizes, recurrence, recurs_alike, gated_norm, probabilities
    );
}
