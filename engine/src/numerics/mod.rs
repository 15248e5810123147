//! Numerics: the arithmetic of engines. Architectures define formulas; numerics define rounding and summation order.

mod activation_quantisation;
mod bit_linear;
mod bitnet_cpp;
mod cache_override;
pub(crate) mod delegate;
mod f32;
mod fused_kernels;
mod gaussian;
mod ggml;
mod kernel_variants;
mod llama2_c;
mod llama_cpp;
mod llama_cpp_flash;
mod perturbed_results;
mod perturbed_terms;
mod quantised_weights;
mod single_token;
mod transformers;

use std::ops::Range;

pub use self::f32::F32;
pub use activation_quantisation::ActivationQuantisation;
pub use bitnet_cpp::BitnetCpp;
pub(crate) use cache_override::CACHE_CODES;
pub use cache_override::CacheOverride;
pub(crate) use delegate::delegate;
pub use fused_kernels::{FusedKernels, FusedStep};
pub use kernel_variants::{KernelVariant, SummationOrder};
pub use llama_cpp::{KvType, LlamaCpp};
pub use llama_cpp_flash::LlamaCppFlash;
pub(crate) use llama_cpp_flash::TILE;
pub use llama2_c::Llama2C;
pub(crate) use perturbed_results::Roundings;
pub use perturbed_results::{PerturbedResults, moved};
pub use perturbed_terms::PerturbedTerms;
pub use quantised_weights::QuantisedWeights;
pub use single_token::SingleTokenNumerics;
pub use transformers::Transformers;

use crate::kernels::elementwise::per_column;
use crate::kernels::softplus::softplus;
use crate::ops::activation::{Activation, ClampedGlu};
use crate::ops::alibi;
use crate::ops::altup;
use crate::ops::attention::{self, AttentionScale, Mask};
use crate::ops::cache;
use crate::ops::decay::DecayRates;
use crate::ops::delta_rule::{DeltaArithmetic, DeltaTokens};
use crate::ops::experts::{self, ExpertOrder, ExpertRouting, RouterPrecision, ScoreFunction};
use crate::ops::gating;
use crate::ops::hadamard;
use crate::ops::l2_norm::L2Norm;
use crate::ops::log_probabilities::{Picks, log_probabilities};
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::row_factor::{self, QueryTemperature};
use crate::ops::scaling::Multiplier;
use crate::ops::shared_expert;
use crate::ops::short_convolution::ShortConvolution;
use crate::ops::sparse_gate::GateSparsity;
use crate::ops::state_space::{self, StateSpace, StepRule};
use crate::parallel;
use crate::quant::{ActivationCodes, ScaleType};
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Plain types, whose elements are single numbers. Decoding them loses nothing and changes no product.
pub const PLAIN: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// One instance of each kind of numerics, for listings.
pub const ALL: &[&dyn Numerics] = &[
    &F32,
    &LlamaCpp { kv: KvType::F16 },
    &LlamaCppFlash::NEW,
    &BitnetCpp { kv: KvType::F16 },
    &Transformers::F32,
    &Llama2C,
];

/// Contents of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedKind {
    /// Keys, and the queries that they are multiplied with.
    Keys,
    /// Values, and their weighted sums.
    Values,
}

/// Operations of the forward pass, with the rounding of one reference implementation.
///
/// T = tokens of the pass, S = tokens read so far, H and Hkv = query and key-value heads, D = head size.
pub trait Numerics: Send + Sync {
    /// Returns the name used on the command line and in reports.
    fn name(&self) -> &'static str;

    /// Returns the supported stored types; models with other types cause an error.
    fn weight_types(&self) -> &'static [DType];

    /// Returns the weight types that products read directly. Other types are decoded first, which gives other results
    /// than the reference implementation.
    fn native_types(&self) -> &'static [DType];

    /// Returns the type that the result of an operation is rounded to: `f32` without rounding.
    fn activation_type(&self) -> DType {
        DType::F32
    }

    /// Returns the 8-bit quantisation of activations before products with weights, unless the weights' type requires
    /// another; `None` for none.
    fn activation_codes(&self) -> Option<ActivationCodes> {
        None
    }

    /// Looks up rows of an embedding table: `[T, d]`.
    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor;

    /// Multiplies or divides each value by a number.
    fn scale(&self, x: &Tensor, by: Multiplier) -> Tensor;

    /// Applies RMSNorm to each row: `[T, d]` or, per head, `[T, H, D]`.
    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor;

    /// Applies LayerNorm to each row: `[T, d]`.
    fn layer_norm(&self, x: &Tensor, norm: &LayerNorm) -> Tensor;

    /// Computes `x · wᵀ`: `[T, cols]` to `[T, rows]`.
    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor;

    /// Computes [`Numerics::linear`], or [`Numerics::affine`] with a bias, for some rows of a pass of `tokens` tokens,
    /// with the same bits as for the whole pass. If the summation order depends on the number of rows, the order for
    /// `tokens` rows is used.
    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor {
        _ = tokens;
        match bias {
            Some(bias) => self.affine(x, w, bias),
            None => self.linear(x, w),
        }
    }

    /// Returns true if a product of `tokens` rows, and the operations around it, give each row the same bits as a
    /// product of one row.
    fn adds_rows_alike(&self, w: &Matrix, tokens: usize) -> bool {
        _ = (w, tokens);
        true
    }

    /// Computes `x · wᵀ + bias`: `[T, cols]` to `[T, rows]`.
    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor;

    /// Computes a linear layer of BitNet, `x · wᵀ · factor`: `[T, cols]` to `[T, rows]`. References round each token's
    /// activations to int8 first.
    fn bit_linear(&self, x: &Tensor, w: &Matrix, factor: Option<Factor>) -> Tensor {
        let products = self.linear(x, w);
        match factor {
            Some(Factor::Multiplies(factor) | Factor::InWeights(factor)) => {
                self.scale(&products, Multiplier::Element(factor))
            }
            Some(Factor::Divides(factor)) => products.map(|product| product / factor),
            None => products,
        }
    }

    /// Computes cosines and sines for the positions of a pass.
    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable;

    /// Rotates each head of `[T, H, D]`.
    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor;

    /// Returns the element type of the KV cache.
    fn cache_type(&self) -> DType;

    /// Returns the relative error of keys and values in another engine's 8-bit cache with unknown scales; 0 without
    /// such a cache.
    fn cache_noise(&self) -> f64 {
        0.0
    }

    /// Returns the number of values of a head that are transformed together before they are stored in the cache, for keys
    /// or values; `None` without a Hadamard transform.
    fn cache_transform(&self, _of: CachedKind, _head_dim: usize) -> Option<usize> {
        None
    }

    /// Applies a Hadamard transform to each `len` neighbouring values.
    fn hadamard(&self, x: &Tensor, len: usize) -> Tensor {
        hadamard::transformed(x, len)
    }

    /// Returns the value that the KV cache stores for keys or values.
    fn to_cache(&self, x: Tensor) -> Tensor;

    /// Returns keys or values, `[T, Hkv, D]`, as they are read from an FP8 cache: stored codes times their scales.
    /// There is one scale, or one for each head.
    fn to_scaled_cache(&self, x: Tensor, scales: &[f32]) -> Tensor {
        cache::scaled(x, scales, ScaleType::of(self.activation_type()))
    }

    /// Computes `scale · q·k`: `[T, H, D]`, `[S, Hkv, D]` to `[H, T, S]`.
    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor;

    /// Computes masked softmax over keys: `[H, T, S]`.
    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor;

    /// Computes masked softmax over keys and a sink in each head, which has no weight: `[H, T, S]`, `[H]` to `[H, T, S]`.
    fn softmax_with_sinks(&self, scores: &Tensor, mask: Mask, sinks: &[f32]) -> Tensor {
        attention::softmax_with_sinks(scores, mask, sinks, |x| x)
    }

    /// Adds ALiBi to scores, `[H, T, S]`: each head's slope, `[H]`, times the distance from the query to the key.
    fn add_alibi(&self, scores: &Tensor, slopes: &[f32], mask: Mask) -> Tensor {
        alibi::added(scores, slopes, mask.position, |score, slope, key, query| {
            slope.mul_add(alibi::distance(key, query), score)
        })
    }

    /// Computes `weights · v` with heads merged: `[H, T, S]`, `[S, Hkv, D]` to `[T, H·D]`.
    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor;

    /// Returns the type that the sum over values is rounded to after each key, in a pass of `tokens` tokens: `f32`
    /// without rounding.
    fn sums_of_values(&self, tokens: usize) -> DType {
        _ = tokens;
        DType::F32
    }

    /// Applies an activation function elementwise.
    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor;

    /// Computes `cap · tanh(x / cap)` in the three usual operations.
    fn soft_cap(&self, x: &Tensor, cap: f32) -> Tensor {
        let bent = self.activation(&self.scale(x, Multiplier::Divisor(cap)), Activation::Tanh);
        self.scale(&bent, Multiplier::Number(cap))
    }

    /// Computes `activation(gate) · up`: GLU variants without their projections (Shazeer, 2020).
    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor;

    /// Computes a gate and an up projection that are clamped: `(up + 1) · gate · sigmoid(alpha · gate)`.
    fn clamped_glu(&self, gate: &Tensor, up: &Tensor, glu: ClampedGlu) -> Tensor {
        glu.of(gate, up)
    }

    /// Computes the probability of each expert: softmax of a router's logits, `[T, E]`, always in `f32`.
    fn likelihoods(&self, logits: &Tensor) -> Tensor {
        let as_scores = logits.clone().reshaped(&[1, logits.rows(), logits.row_len()]);
        F32.softmax(&as_scores, Mask::NONE).reshaped(logits.shape())
    }

    /// Computes a router's logits: `[T, d]` to `[T, E]`.
    fn router_logits(&self, x: &Tensor, w: &Matrix, _precision: RouterPrecision) -> Tensor {
        self.linear(x, w)
    }

    /// Computes the score of each expert from the router's logits, always in `f32`: `[T, E]` to `[T, E]`.
    fn scores_of_logits(&self, logits: &Tensor, function: ScoreFunction) -> Tensor {
        match function {
            ScoreFunction::Softmax => self.likelihoods(logits),
            ScoreFunction::Sigmoid => F32.activation(logits, Activation::Sigmoid),
        }
    }

    /// Computes the scores by which experts are chosen: `[T, E]` to `[T, E]`.
    fn expert_scores(&self, logits: &Tensor, routing: &ExpertRouting) -> Tensor {
        routing.biased(self.scores_of_logits(logits, routing.function))
    }

    /// Chooses each token's experts by their scores: `[T, E]` to `[T, k]`, in ascending index order.
    fn choose(&self, scores: &Tensor, routing: &ExpertRouting) -> Tensor {
        experts::choose(scores, routing)
    }

    /// Computes the weights of the chosen experts: `[T, E]`, `[T, k]` to `[T, k]`.
    fn expert_weights(&self, logits: &Tensor, chosen: &Tensor, routing: &ExpertRouting) -> Tensor {
        let weights = experts::of_chosen(&self.scores_of_logits(logits, routing.function), chosen);
        let weights = routing.scaled(match routing.is_normalised {
            true => experts::normalised(weights, |row| {
                let sum: f32 = ExpertOrder::Scores.of(row).into_iter().map(|at| row[at]).sum();
                sum + routing.added
            }),
            false => weights,
        });
        routing.scaled_each(weights, chosen)
    }

    /// Computes [`Numerics::linear`] for the rows that chose one expert.
    fn linear_of_expert(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.linear(x, w)
    }

    /// Multiplies tokens with their chosen experts' matrices: `[T, cols]`, or `[T, k, cols]` with an input for each
    /// expert, to `[T, k, rows]`.
    fn routed(&self, x: &Tensor, w: &[Matrix], chosen: &Tensor) -> Tensor {
        let outputs = w.first().map_or(0, |w| w.rows);
        experts::routed(x, chosen, outputs, |rows, expert| self.linear_of_expert(rows, &w[expert]))
    }

    /// Computes the weighted sum of the chosen experts' outputs: `[T, k, d]`, `[T, k]` and the chosen experts' scores,
    /// `[T, k]`, to `[T, d]`. `is_whole` is true if the architecture's authors round the sum only at the end.
    fn mix(&self, outputs: &Tensor, weights: &Tensor, scores: &Tensor, is_whole: bool) -> Tensor {
        _ = is_whole;
        experts::mixed(outputs, weights, scores, ExpertOrder::Scores, |x| x)
    }

    /// Computes the weight of a shared expert from its logit, one for each token: `[T]` to `[T]`.
    fn shared_weights(&self, logits: &Tensor) -> Tensor {
        self.activation(logits, Activation::Sigmoid)
    }

    /// Adds the outputs of a shared expert, times its weights if it has any: `[T, d]`, `[T, d]`, `[T]` to `[T, d]`.
    fn add_shared(&self, routed: &Tensor, outputs: &Tensor, weights: Option<&Tensor>) -> Tensor {
        shared_expert::added(routed, outputs, weights, |x| x)
    }

    /// Multiplies each row by its factors: `[T, ...]` and `[T]`, or `[T, d]` and `[T, k]` to `[T, k, d]`.
    fn row_scaled(&self, x: &Tensor, factors: &Tensor) -> Tensor {
        row_factor::scaled(x, factors, |product| product)
    }

    /// Mixes the parts of each row: `[T, n·d]` and coefficients `[T, n·n]` to `[T, n·d]`.
    fn mix_streams(&self, streams: &Tensor, coefs: &Tensor) -> Tensor {
        altup::mixed(streams, coefs, |sum| sum)
    }

    /// Rescales the parts of each row, `[T, k·d]`, to the magnitude of the row of `like`, `[T, d]`.
    fn match_magnitude(&self, x: &Tensor, like: &Tensor) -> Tensor {
        altup::matched(x, like, altup::root_of_sum, |x| x)
    }

    /// Computes the mean of the `count` parts of each row: `[T, n·d]` to `[T, d]`.
    fn mean_of_streams(&self, streams: &Tensor, count: usize) -> Tensor {
        altup::mean(streams, count, |sum, count| sum * (1.0 / count))
    }

    /// Computes the part of each gate value that exceeds the row's threshold: `[T, F]` to `[T, F]`.
    fn sparse_gate(&self, gate: &Tensor, sparsity: GateSparsity) -> Tensor {
        sparsity.of_gate(gate)
    }

    /// Multiplies queries by the temperature of their position: `[T, H, D]`.
    fn tempered(&self, q: &Tensor, temperature: &QueryTemperature, positions: Range<usize>) -> Tensor {
        self.row_scaled(q, &temperature.factors(positions))
    }

    /// Computes a causal convolution of each channel: `[k - 1 + T, C]`, beginning with the kept inputs, to `[T, C]`.
    fn short_convolution(&self, x: &Tensor, conv: &ShortConvolution) -> Tensor {
        conv.of(x)
    }

    /// Applies the L2 norm to each row of queries or keys, in `f32`: `[T, H, D]`.
    fn l2_norm(&self, x: &Tensor, norm: L2Norm) -> Tensor {
        norm.of(x)
    }

    /// Computes the logarithms of the decay of linear attention, in `f32`: `[T, H]` to `[T, H]`.
    fn decay(&self, a: &Tensor, rates: &DecayRates) -> Tensor {
        rates.of(a, softplus)
    }

    /// Computes a gated delta rule: the state after the tokens, in `f32`, `[H, Dv, Dk]`, and the outputs, `[T, H, Dv]`.
    fn delta_rule(&self, tokens: &DeltaTokens, state: &Tensor) -> [Tensor; 2] {
        DeltaArithmetic::PLAIN.of(tokens, state)
    }

    /// Multiplies normed rows by SiLU of a gate, which is not rounded before the product.
    fn silu_gated(&self, normed: &Tensor, gate: &Tensor) -> Tensor {
        self.gated(gate, normed, Activation::Silu)
    }

    /// Multiplies `x` by a gate, which is part number `part` of a projection: `[T, n · C]` and `[T, C]` to `[T, C]`.
    fn gated_by_part(&self, projected: &Tensor, part: usize, x: &Tensor) -> Tensor {
        gating::gated(projected, part, x, |product| product)
    }

    /// Multiplies each column by its factor: `[T, C]` and `[C]` to `[T, C]`.
    fn column_scaled(&self, x: &Tensor, factors: &[f32]) -> Tensor {
        let factors = Tensor::new(x.shape(), factors.repeat(x.rows()));
        self.gated_by_part(&factors, 0, x)
    }

    /// Computes the step sizes of a recurrence: softplus of a projection plus a bias, within limits, `[T, H]`. `is_single` is
    /// true in single-token decode.
    fn step_sizes(&self, dt: &Tensor, rule: &StepRule, is_single: bool) -> Tensor {
        _ = is_single;
        per_column(dt.clone(), rule.bias.iter().copied(), |dt, bias| rule.limited(softplus(dt + bias)))
    }

    /// Runs the Mamba-2 recurrence over a pass. Inputs: convolved values, `[T, H·P + 2·G·N]`, step sizes, `[T, H]`, and the
    /// state before the pass, `[H, P, N]`. Returns the outputs, `[T, H·P]`, and the state after the pass. `is_single` is
    /// true in single-token decode.
    fn recurrence(
        &self,
        x: &Tensor,
        steps: &Tensor,
        before: &Tensor,
        space: &StateSpace,
        is_single: bool,
    ) -> [Tensor; 2] {
        _ = is_single;
        space.run(x, steps, before, state_space::advance)
    }

    /// Returns true if the recurrence and its norm give bit-identical results in prefill and in single-token decode.
    fn recurs_alike(&self) -> bool {
        true
    }

    /// Computes the output of a recurrence times SiLU of a gate, and norms it: `[T, H·P]` twice, to `[T, H·P]`.
    fn gated_norm(&self, gate: &Tensor, x: &Tensor, norm: &RmsNorm, is_single: bool) -> Tensor {
        _ = is_single;
        self.rms_norm(&self.gated(gate, x, Activation::Silu), norm)
    }

    /// Gathers values of several tensors, without rounding: `from` gives the tensor and the index for each result.
    fn rearranged(
        &self,
        tensors: &[&Tensor],
        shape: &[usize],
        from: &dyn Fn(usize) -> (usize, usize),
    ) -> Tensor {
        let at = |flat: usize| {
            let (tensor, index) = from(flat);
            tensors[tensor].data()[index]
        };
        Tensor::new(shape, (0..shape.iter().product()).map(at).collect())
    }

    /// Adds two tensors, such as a branch to the residual stream.
    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor;

    /// Adds the outputs of the two branches of a parallel block, before the sum is added to the residual stream.
    fn add_halves(&self, a: &Tensor, b: &Tensor) -> Tensor {
        self.add(a, b)
    }

    /// Returns the last row of `[T, V]`, from which the next token is chosen: `[1, V]`.
    fn last_row(&self, logits: &Tensor) -> Tensor {
        logits.last_row()
    }

    /// Computes softmax(logits / temperature) of one row.
    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor;

    /// Computes log softmax(logits / temperature) of some tokens of each row: `[T, V]` to the shape of `picks`.
    /// Computed in `f64` and rounded once, unlike in a reference implementation.
    fn log_probabilities(&self, logits: &Tensor, picks: &Picks, temperature: f32) -> Tensor {
        let values = parallel::map(picks.rows.len(), 8 * logits.row_len(), |row| {
            log_probabilities(logits.row(picks.rows[row]), picks.row(row), picks.is_closed, temperature)
        });
        Tensor::new(&picks.shape, values.into_iter().flatten().map(|y| y as f32).collect())
    }
}
