//! `transformers`: the arithmetic of eager transformers models in a dtype of torch.
//!
//! Weights and activations have that dtype, and every operation rounds its result to it once. Inside an operation torch
//! computes in `f32`: sums of products, the statistics of a norm (rounded before the product with its weight), softmax,
//! RoPE's cosines and sines. In `f32` nothing is rounded.

use std::ops::Range;

use half::{bf16, f16};

use crate::kernels::elementwise::{per_column, zip};
use crate::kernels::product::{StridedRows, product};
use crate::kernels::softplus::softplus;
use crate::numerics::{F32, Numerics};
use crate::ops::activation::{Activation, CUBIC, ClampedGlu, SQRT_2_OVER_PI};
use crate::ops::alibi;
use crate::ops::altup;
use crate::ops::attention::{self, AttentionScale, Mask};
use crate::ops::decay::DecayRates;
use crate::ops::delta_rule::DeltaTokens;
use crate::ops::experts::{self, ExpertOrder, ExpertRouting, RouterPrecision};
use crate::ops::gating;
use crate::ops::linear::DecodedRows;
use crate::ops::norm::{Gain, LayerNorm, RmsNorm, rms_normed};
use crate::ops::rope::{Rope, RopeRounding, RopeTable};
use crate::ops::row_factor::{self, QueryTemperature};
use crate::ops::scaling::Multiplier;
use crate::ops::shared_expert;
use crate::ops::short_convolution::ShortConvolution;
use crate::ops::sparse_gate::GateSparsity;
use crate::ops::state_space::{self, StateSpace, StepRule};
use crate::quant::{self, ternary};
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Computes as a transformers model of this dtype does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transformers {
    /// Single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// Half precision.
    F16,
}

/// Plain types, and the ternary codes of transformers' linear layers for BitNet.
const NATIVE: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::I2_S, DType::TL];

impl Transformers {
    #[inline(always)]
    pub(super) fn round(self, value: f32) -> f32 {
        match self {
            Transformers::F32 => value,
            Transformers::Bf16 => bf16::from_f32(value).to_f32(),
            Transformers::F16 => f16::from_f32(value).to_f32(),
        }
    }

    pub(super) fn rounded(self, x: Tensor) -> Tensor {
        if self == Transformers::F32 { x } else { x.map(|value| self.round(value)) }
    }

    fn rounded_row(self, row: &[f32]) -> Vec<f32> {
        row.iter().map(|&value| self.round(value)).collect()
    }

    /// Computes `x · wᵀ` without rounding the result.
    pub(super) fn products(self, x: &Tensor, w: &Matrix) -> Tensor {
        product(StridedRows::rows_of(x), &DecodedRows::new(w, self.cache_type()))
    }

    /// Computes GELU's tanh form as a chain of torch operations, each with a rounding. `torch.pow(x, 3)` is one
    /// operation, but in bf16 its square is rounded as well.
    fn gelu_new(self, x: f32) -> f32 {
        let square = if self == Transformers::Bf16 { self.round(x * x) } else { x * x };
        let cubic = self.round(CUBIC * self.round(square * x));
        let inner = self.round(SQRT_2_OVER_PI * self.round(x + cubic));
        self.round(self.round(0.5 * x) * self.round(1.0 + self.round(inner.tanh())))
    }
}

impl Transformers {
    /// Computes GELU's tanh form as BLOOM does, with a rounding after each operation.
    fn gelu_factored(self, x: f32) -> f32 {
        let factor = self.round(1.0 + self.round(self.round(CUBIC * x) * x));
        let inner = self.round(self.round(SQRT_2_OVER_PI * x) * factor);
        self.round(self.round(0.5 * x) * self.round(1.0 + self.round(inner.tanh())))
    }
}

impl Numerics for Transformers {
    fn name(&self) -> &'static str {
        "transformers"
    }

    fn weight_types(&self) -> &'static [DType] {
        quant::READABLE
    }

    fn native_types(&self) -> &'static [DType] {
        NATIVE
    }

    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor {
        self.rounded(F32.embed(table, tokens))
    }

    fn scale(&self, x: &Tensor, by: Multiplier) -> Tensor {
        let by = match by {
            Multiplier::Element(factor) => Multiplier::Element(self.round(factor)),
            number => number,
        };
        self.rounded(F32.scale(x, by))
    }

    /// Applies RMSNorm. Llama's norm is rounded before the product with the weight; Gemma's and OLMo 2's are rounded
    /// after it.
    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor {
        let norm = &RmsNorm { weight: self.rounded_row(&norm.weight), ..*norm };
        let normed = rms_normed(x, norm.width(), norm.eps);
        let normed = match norm.gain {
            Gain::Weight => self.rounded(normed),
            Gain::OnePlusWeight | Gain::TwoPlusWeight | Gain::WeightFirst => normed,
        };
        per_column(normed, norm.gains(), |x, gain| self.round(x * gain))
    }

    fn layer_norm(&self, x: &Tensor, norm: &LayerNorm) -> Tensor {
        let weight = norm.weight.iter().map(|&weight| self.round(norm.gain.of(self.round(weight)))).collect();
        let bias = self.rounded_row(&norm.bias);
        self.rounded(F32.layer_norm(x, &LayerNorm { weight, bias, eps: norm.eps, gain: Gain::Weight }))
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.rounded(self.products(x, w))
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        per_column(self.products(x, w), self.rounded_row(bias), |x, bias| self.round(x + bias))
    }

    /// Computes a BitNet linear layer. Without a factor and with plain weights, computes an ordinary linear layer.
    /// bitnet.cpp's matrices have their own scale, which is applied like the scale of a packed checkpoint.
    fn bit_linear(&self, x: &Tensor, w: &Matrix, factor: Option<Factor>) -> Tensor {
        match factor {
            Some(factor) => self.bit_products(x, w, factor),
            None if ternary::is_ternary(w.dtype) => {
                self.bit_products(x, &w.clone().with_scale(1.0), Factor::Multiplies(w.scale()))
            }
            None => self.linear(x, w),
        }
    }

    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable {
        let table = F32.rope_table(rope, positions);
        match rope.rounding {
            RopeRounding::Results => table,
            RopeRounding::Each | RopeRounding::Tables => table.rounded(|value| self.round(value)),
        }
    }

    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor {
        if table.rope().rounding != RopeRounding::Each {
            return self.rounded(F32.rotate(x, table));
        }
        table.rotate(x, |value| self.round(value))
    }

    fn activation_type(&self) -> DType {
        self.cache_type()
    }

    fn cache_type(&self) -> DType {
        match self {
            Transformers::F32 => DType::F32,
            Transformers::Bf16 => DType::BF16,
            Transformers::F16 => DType::F16,
        }
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        x
    }

    /// Computes scores and applies the scale to the products, as transformers does for most architectures.
    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        if let AttentionScale::RoundedQueries(factor) = scale {
            let q = self.scale(q, Multiplier::Number(factor));
            return self.rounded(F32.scores(&q, k, AttentionScale::Products(1.0)));
        }
        let products = self.rounded(F32.scores(q, k, AttentionScale::Products(1.0)));
        products.map(|product| self.round(product * scale.factor()))
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        self.rounded(F32.softmax(scores, mask))
    }

    /// Computes softmax with sinks, and rounds the distances from the largest logit too.
    fn softmax_with_sinks(&self, scores: &Tensor, mask: Mask, sinks: &[f32]) -> Tensor {
        let sinks = self.rounded_row(sinks);
        self.rounded(attention::softmax_with_sinks(scores, mask, &sinks, |x| self.round(x)))
    }

    /// Adds the slope times the key's position to each score. Both are rounded.
    fn add_alibi(&self, scores: &Tensor, slopes: &[f32], mask: Mask) -> Tensor {
        alibi::added(scores, slopes, mask.position, |score, slope, key, _| {
            self.round(score + self.round(slope * key as f32))
        })
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        self.rounded(F32.context(weights, v))
    }

    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor {
        match activation {
            Activation::GeluNew => x.clone().map(|x| self.gelu_new(x)),
            Activation::GeluFactored => x.clone().map(|x| self.gelu_factored(x)),
            _ => self.rounded(F32.activation(x, activation)),
        }
    }

    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor {
        zip(&self.activation(gate, activation), up, |gate, up| self.round(gate * up))
    }

    fn clamped_glu(&self, gate: &Tensor, up: &Tensor, glu: ClampedGlu) -> Tensor {
        zip(gate, up, |gate, up| {
            let (gate, up) = glu.clamped(gate, up);
            let sigmoid = self.round(1.0 / (1.0 + (-self.round(gate * glu.alpha)).exp()));
            self.round(self.round(up + 1.0) * self.round(gate * sigmoid))
        })
    }

    fn router_logits(&self, x: &Tensor, w: &Matrix, precision: RouterPrecision) -> Tensor {
        match precision {
            RouterPrecision::Activations => self.linear(x, w),
            RouterPrecision::Unrounded => self.products(x, w),
            RouterPrecision::Whole => Transformers::F32.products(x, w),
        }
    }

    /// Adds the correction bias to the experts' scores. If the router's logits are rounded, the bias is rounded like a
    /// weight.
    fn expert_scores(&self, logits: &Tensor, routing: &ExpertRouting) -> Tensor {
        let scores = self.scores_of_logits(logits, routing.function);
        if routing.rounds_scores {
            return routing.biased(self.rounded(scores));
        }
        match routing.precision {
            RouterPrecision::Activations => {
                ExpertRouting { bias: self.rounded_row(&routing.bias), ..routing.clone() }.biased(scores)
            }
            RouterPrecision::Unrounded | RouterPrecision::Whole => routing.biased(scores),
        }
    }

    /// Computes scores and their sum in `f32`; the architecture decides if the weights are rounded afterwards, or if each
    /// step is rounded.
    fn expert_weights(&self, logits: &Tensor, chosen: &Tensor, routing: &ExpertRouting) -> Tensor {
        if routing.rounds_scores {
            let scores = self.rounded(self.scores_of_logits(logits, routing.function));
            let scores = experts::of_chosen(&scores, chosen);
            let sum = |row: &[f32]| self.round(self.round(row.iter().sum()) + routing.added);
            let weights = if routing.is_normalised { experts::normalised(scores, sum) } else { scores };
            return self.rounded(routing.scaled(self.rounded(weights)));
        }
        let scales = self.rounded_row(&routing.scales);
        let weights = F32.expert_weights(logits, chosen, &ExpertRouting { scales, ..routing.clone() });
        if routing.is_rounded { self.rounded(weights) } else { weights }
    }

    /// Adds the outputs expert by expert, in index order.
    fn mix(&self, outputs: &Tensor, weights: &Tensor, scores: &Tensor, is_whole: bool) -> Tensor {
        let mixed = |round: &(dyn Fn(f32) -> f32 + Sync)| {
            experts::mixed(outputs, weights, scores, ExpertOrder::Numbers, round)
        };
        if is_whole { self.rounded(mixed(&|x| x)) } else { mixed(&|x| self.round(x)) }
    }

    fn add_shared(&self, routed: &Tensor, outputs: &Tensor, weights: Option<&Tensor>) -> Tensor {
        shared_expert::added(routed, outputs, weights, |x| self.round(x))
    }

    fn row_scaled(&self, x: &Tensor, factors: &Tensor) -> Tensor {
        row_factor::scaled(x, factors, |product| self.round(product))
    }

    fn mix_streams(&self, streams: &Tensor, coefs: &Tensor) -> Tensor {
        altup::mixed(streams, coefs, |sum| self.round(sum))
    }

    /// Rescales magnitudes. Rounds squares, their mean, and its root.
    fn match_magnitude(&self, x: &Tensor, like: &Tensor) -> Tensor {
        let magnitude = |x: &[f32], least: f32| {
            let sum: f64 = x.iter().map(|x| f64::from(self.round(x * x))).sum();
            let mean = self.round((sum / x.len() as f64) as f32);
            self.round(mean.max(self.round(least)).sqrt())
        };
        altup::matched(x, like, magnitude, |x| self.round(x))
    }

    fn mean_of_streams(&self, streams: &Tensor, count: usize) -> Tensor {
        altup::mean(streams, count, |sum, count| self.round(sum / count))
    }

    /// Computes the sparse gate and rounds each step. In `f32`, the deviation is computed in one operation with sums in
    /// `f64`.
    fn sparse_gate(&self, gate: &Tensor, sparsity: GateSparsity) -> Tensor {
        let quantile = self.round(sparsity.quantile);
        Tensor::from_rows(gate.rows(), gate.row_len(), |row, out| {
            let x = gate.row(row);
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64;
            let squares: f64 = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
            let deviation = (squares / f64::from(sparsity.divisor(x.len()))).sqrt() as f32;
            let distance = self.round(self.round(deviation) * quantile);
            let threshold = self.round(self.round(mean as f32) + distance);
            out.iter_mut().zip(x).for_each(|(out, x)| *out = self.round(x - threshold).max(0.0));
        })
    }

    fn tempered(&self, q: &Tensor, temperature: &QueryTemperature, positions: Range<usize>) -> Tensor {
        let factors = temperature.factors(positions);
        self.row_scaled(q, &if temperature.is_rounded { self.rounded(factors) } else { factors })
    }

    fn short_convolution(&self, x: &Tensor, conv: &ShortConvolution) -> Tensor {
        let conv = ShortConvolution {
            weight: self.rounded_row(&conv.weight),
            bias: conv.bias.as_ref().map(|bias| self.rounded_row(bias)),
            kernel: conv.kernel,
        };
        self.rounded(conv.of(x))
    }

    /// Computes the decay from rounded parameters. Rates in the form `-exp(A_log)` are not rounded, since the
    /// exponential is computed in `f32`.
    fn decay(&self, a: &Tensor, rates: &DecayRates) -> Tensor {
        let rounded = if rates.are_logarithms { self.rounded_row(&rates.rates) } else { rates.rates.clone() };
        F32.decay(a, &DecayRates { rates: rounded, bias: self.rounded_row(&rates.bias), ..*rates })
    }

    /// Computes the delta rule in `f32` and rounds the outputs.
    fn delta_rule(&self, tokens: &DeltaTokens, state: &Tensor) -> [Tensor; 2] {
        let [state, out] = F32.delta_rule(tokens, state);
        [state, self.rounded(out)]
    }

    fn silu_gated(&self, normed: &Tensor, gate: &Tensor) -> Tensor {
        self.rounded(F32.silu_gated(normed, gate))
    }

    fn gated_by_part(&self, projected: &Tensor, part: usize, x: &Tensor) -> Tensor {
        gating::gated(projected, part, x, |product| self.round(product))
    }

    /// Computes step sizes. Single-token decode has no limits.
    fn step_sizes(&self, dt: &Tensor, rule: &StepRule, is_single: bool) -> Tensor {
        per_column(dt.clone(), self.rounded_row(&rule.bias), |dt, bias| {
            let step = self.round(softplus(self.round(dt + bias)));
            if is_single { step } else { self.round(rule.limited(step)) }
        })
    }

    /// Runs the recurrence. A pass of several tokens is computed in `f32`; single-token decode rounds products.
    fn recurrence(
        &self,
        x: &Tensor,
        steps: &Tensor,
        before: &Tensor,
        space: &StateSpace,
        is_single: bool,
    ) -> [Tensor; 2] {
        let (decay, skip) = (space.rates(|log| self.round(log)), self.rounded_row(&space.skip));
        let space = StateSpace { decay, is_log: false, skip, ..*space };
        if !is_single || *self == Transformers::F32 {
            return space.run(x, steps, before, state_space::advance);
        }
        space.run_single(x, steps, before, |value| self.round(value))
    }

    fn recurs_alike(&self) -> bool {
        *self == Transformers::F32
    }

    /// Computes the gated output and its norm in `f32`, but rounds the normed row of a single token.
    fn gated_norm(&self, gate: &Tensor, x: &Tensor, norm: &RmsNorm, is_single: bool) -> Tensor {
        let gain = if is_single { Gain::Weight } else { Gain::WeightFirst };
        self.rms_norm(&F32.gated(gate, x, Activation::Silu), &RmsNorm { gain, ..norm.clone() })
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        self.rounded(F32.add(a, b))
    }

    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor {
        F32.probabilities(logits, temperature)
    }
}
