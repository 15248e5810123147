//! `llama.cpp`: the arithmetic of ggml's CPU backend on x86-64 with AVX2.
//!
//! Differences from plain `f32`, found in its sources and its dumps:
//! - a product rounds the *activations* to the type paired with the weights (F16 to `f16`, Q4_K to Q8_K blocks …), and
//!   sums in its kernel's order, which depends on the number of tokens: [`quant`];
//! - the KV cache is `f16` by default; queries and attention weights are then rounded to `f16` before products with
//!   keys and values;
//! - RoPE angles come from repeated multiplication;
//! - GELU is looked up in a table of `f16` for arguments between -10 and 10;
//! - SiLU and softmax use ggml's own exponential; attention and LayerNorm have their own summation order: [`ggml`].

use std::ops::Range;

use half::f16;

use crate::kernels::elementwise::{per_column, plus_bias, zip};
use crate::kernels::panels::panels;
use crate::kernels::softplus::ggml_softplus;
use crate::numerics::{F32, Numerics, ggml};
use crate::ops::activation::{Activation, CUBIC, SQRT_2_OVER_PI};
use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::decay::DecayRates;
use crate::ops::delta_rule::{DeltaArithmetic, DeltaTokens};
use crate::ops::experts::{self, ExpertRouting, ScoreFunction};
use crate::ops::l2_norm::L2Norm;
use crate::ops::norm::{LayerNorm, RmsNorm, rms_normed, standardised};
use crate::ops::rope::{Rope, RopeTable, iterated_angles};
use crate::ops::scaling::Multiplier;
use crate::ops::sparse_gate::GateSparsity;
use crate::ops::state_space::StepRule;
use crate::quant::{self, DotOrder, round_to_f16};
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};

/// Element type of llama.cpp's KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// Half precision, llama.cpp's default.
    #[default]
    F16,
    /// Single precision.
    F32,
}

impl KvType {
    /// Returns the element type.
    pub fn dtype(self) -> DType {
        match self {
            KvType::F16 => DType::F16,
            KvType::F32 => DType::F32,
        }
    }

    /// Returns the cache with this element type, if llama.cpp's arithmetic is known for it.
    pub fn of(dtype: DType) -> Option<Self> {
        [KvType::F16, KvType::F32].into_iter().find(|kv| kv.dtype() == dtype)
    }
}

/// Computes as llama.cpp does. Operations without special rounding are those of [`F32`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LlamaCpp {
    /// Element type of the KV cache.
    pub kv: KvType,
}

impl LlamaCpp {
    /// Rounds values to the cache's type, before products with cached values.
    pub(super) fn as_cached(&self, x: &Tensor) -> Tensor {
        match self.kv {
            KvType::F16 => Tensor::new(x.shape(), round_to_f16(x.data())),
            KvType::F32 => x.clone(),
        }
    }
}

impl Numerics for LlamaCpp {
    fn name(&self) -> &'static str {
        "llama.cpp"
    }

    fn weight_types(&self) -> &'static [DType] {
        quant::DECODABLE
    }

    fn native_types(&self) -> &'static [DType] {
        quant::DECODABLE
    }

    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor {
        F32.embed(table, tokens)
    }

    /// Multiplies by the reciprocal, as ggml does, where other engines divide.
    fn scale(&self, x: &Tensor, by: Multiplier) -> Tensor {
        F32.scale(x, Multiplier::Number(by.factor()))
    }

    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor {
        F32.rms_norm(x, norm)
    }

    fn layer_norm(&self, x: &Tensor, norm: &LayerNorm) -> Tensor {
        norm.scaled(standardised(x, norm.weight.len(), norm.eps, ggml::mean, ggml::mean_square))
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.linear_of_pass(x, w, None, x.rows())
    }

    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor {
        let activations = quant::quantised_rows(quant::activation_type(w.dtype), x.data(), x.row_len());
        let dots = quant::Product::new(w.dtype, DotOrder::of(w.dtype, tokens, w.rows, w.cols));
        let products = panels(x.rows(), w.rows, w.cols, |outputs, columns| {
            dots.fill(w.row_range(outputs), &activations, columns);
        });
        let scale = w.scale();
        let products = if scale == 1.0 { products } else { products.map(|product| product * scale) };
        plus_bias(products, bias)
    }

    /// Returns false: attention has one summation order for one token and another for several, for every matrix.
    fn adds_rows_alike(&self, _: &Matrix, tokens: usize) -> bool {
        tokens == 1
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        self.linear_of_pass(x, w, Some(bias), x.rows())
    }

    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable {
        RopeTable::with_magnitude(rope, positions, iterated_angles, rope.ggml_magnitude())
    }

    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor {
        table.rotate_fused(x)
    }

    fn cache_type(&self) -> DType {
        match self.kv {
            KvType::F16 => DType::F16,
            KvType::F32 => DType::F32,
        }
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        self.as_cached(&x)
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        match scale {
            AttentionScale::Products(factor) => {
                let order = ggml::order_of_scores(q, self.cache_type());
                ggml::scores(&self.as_cached(q), k, self.cache_type(), order, factor)
            }
            AttentionScale::Queries(factor) | AttentionScale::RoundedQueries(factor) => {
                self.scores(&self.scale(q, Multiplier::Element(factor)), k, AttentionScale::Products(1.0))
            }
        }
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        ggml::softmax(scores, mask, None)
    }

    fn softmax_with_sinks(&self, scores: &Tensor, mask: Mask, sinks: &[f32]) -> Tensor {
        ggml::softmax(scores, mask, Some(sinks))
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        ggml::context(&self.as_cached(weights), v)
    }

    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor {
        match activation {
            Activation::GeluTanh | Activation::GeluNew | Activation::GeluFactored => {
                x.clone().map(tabled_gelu)
            }
            Activation::Sigmoid => x.clone().map(sigmoid),
            _ => F32.activation(x, activation),
        }
    }

    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor {
        match activation {
            Activation::GeluTanh | Activation::GeluNew | Activation::GeluFactored => {
                zip(gate, up, |gate, up| tabled_gelu(gate) * up)
            }
            Activation::Silu => ggml::swiglu(gate, up),
            Activation::Sigmoid => zip(gate, up, |gate, up| sigmoid(gate) * up),
            _ => F32.gated(gate, up, activation),
        }
    }

    fn likelihoods(&self, logits: &Tensor) -> Tensor {
        ggml::likelihoods(logits)
    }

    /// Computes the score of each expert. The logistic function uses the C library's exponential.
    fn scores_of_logits(&self, logits: &Tensor, function: ScoreFunction) -> Tensor {
        match function {
            ScoreFunction::Softmax => self.likelihoods(logits),
            ScoreFunction::Sigmoid => logits.clone().map(sigmoid),
        }
    }

    /// Divides the weights by their sum, which is `f64` and at least the smallest normal `f16`.
    fn expert_weights(&self, logits: &Tensor, chosen: &Tensor, routing: &ExpertRouting) -> Tensor {
        const LEAST: f32 = 6.103_515_6e-5;
        if routing.is_of_chosen && routing.function == ScoreFunction::Softmax {
            return ggml::softmax_of_chosen(&experts::of_chosen(logits, chosen));
        }
        let weights = experts::of_chosen(&self.scores_of_logits(logits, routing.function), chosen);
        let sum = |row: &[f32]| (row.iter().map(|&weight| f64::from(weight)).sum::<f64>() as f32).max(LEAST);
        routing.scaled(if routing.is_normalised { experts::normalised(weights, sum) } else { weights })
    }

    /// Multiplies rows with an expert's matrix, in the order of `ggml_mul_mat_id`, which does not use llamafile's
    /// kernels.
    fn linear_of_expert(&self, x: &Tensor, w: &Matrix) -> Tensor {
        let is_llamafile_s = matches!(w.dtype, DType::F32 | DType::F16 | DType::BF16 | DType::IQ4_NL);
        self.linear_of_pass(x, w, None, if is_llamafile_s { 1 } else { x.rows() })
    }

    /// Computes the logistic function as SiLU(x) / x. A row of one value uses the C library's exponential.
    fn shared_weights(&self, logits: &Tensor) -> Tensor {
        logits.clone().map(|x| x / (1.0 + (-x).exp()) / x)
    }

    /// Computes the L2 norm as RMSNorm without a weight, times a constant.
    fn l2_norm(&self, x: &Tensor, norm: L2Norm) -> Tensor {
        let width = norm.width as f32;
        let root = 1.0 / width.sqrt();
        match norm.is_least {
            true => norm.of(x),
            false => rms_normed(x, norm.width, norm.eps / width).map(|x| x * root),
        }
    }

    fn decay(&self, a: &Tensor, rates: &DecayRates) -> Tensor {
        rates.of(a, ggml_softplus)
    }

    fn sparse_gate(&self, gate: &Tensor, sparsity: GateSparsity) -> Tensor {
        sparsity.in_llama_cpp().of_gate(gate)
    }

    fn step_sizes(&self, dt: &Tensor, rule: &StepRule, _: bool) -> Tensor {
        per_column(dt.clone(), rule.bias.iter().copied(), |dt, bias| rule.limited(ggml_softplus(dt + bias)))
    }

    fn delta_rule(&self, tokens: &DeltaTokens, state: &Tensor) -> [Tensor; 2] {
        let arithmetic =
            DeltaArithmetic { exp: f32::exp, dot: ggml::dot, multiply_add: |a, b, c| a.mul_add(b, c) };
        arithmetic.of(tokens, state)
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        F32.add(a, b)
    }

    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor {
        F32.probabilities(logits, temperature)
    }
}

/// Computes the logistic function with the C library's exponential.
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Returns GELU from ggml's table. Argument and value are rounded to `f16`, except for large arguments.
fn tabled_gelu(x: f32) -> f32 {
    if x <= -10.0 {
        return 0.0;
    }
    if x >= 10.0 {
        return x;
    }
    f16::from_f32(gelu(f16::from_f32(x).to_f32())).to_f32()
}

/// Computes GELU's tanh form with the fused multiply-add that compilers create from ggml's expression.
fn gelu(x: f32) -> f32 {
    let inner = SQRT_2_OVER_PI * x * (CUBIC * x).mul_add(x, 1.0);
    0.5 * x * (1.0 + inner.tanh())
}
