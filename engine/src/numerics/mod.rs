//! Ways of computing: formulas are the architecture's, rounding is the numerics'.

mod activation_quantisation;
mod bit_linear;
mod bitnet_cpp;
mod cache_override;
mod decoded_rows;
pub(crate) mod delegate;
mod f32;
mod ggml;
mod kernel_variants;
mod llama2_c;
mod llama_cpp;
mod llama_cpp_flash;
mod perturbed_results;
mod perturbed_terms;
mod single_token;
mod transformers;

use std::ops::Range;

pub use self::f32::F32;
pub use activation_quantisation::ActivationQuantisation;
pub use bitnet_cpp::BitnetCpp;
pub use cache_override::{CACHE_CODES, CacheOverride};
pub(crate) use delegate::delegate;
pub use kernel_variants::{KernelVariant, SummationOrder};
pub use llama_cpp::{KvType, LlamaCpp};
pub use llama_cpp_flash::{LlamaCppFlash, TILE};
pub use llama2_c::Llama2C;
pub use perturbed_results::{PerturbedResults, Roundings, moved};
pub use perturbed_terms::PerturbedTerms;
pub use single_token::SingleTokenNumerics;
pub use transformers::Transformers;

use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::experts::{self, ExpertOrder, ExpertRouting};
use crate::ops::ffn::Activation;
use crate::ops::multiplier::Multiplier;
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::sampling::{Picks, log_probabilities};
use crate::parallel;
use crate::quant::ActivationCodes;
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Types whose elements are numbers by themselves: to decode one loses nothing and changes no product.
pub const PLAIN: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// One instance of each kind, to list those with a feature.
pub const ALL: &[&dyn Numerics] = &[
    &F32,
    &LlamaCpp { kv: KvType::F16 },
    &LlamaCppFlash::NEW,
    &BitnetCpp { kv: KvType::F16 },
    &Transformers::F32,
    &Llama2C,
];

/// Operations of block diagrams, with the rounding of one reference.
///
/// T = tokens of the pass, S = tokens seen so far, H and Hkv = query and key-value heads, D = head size.
pub trait Numerics: Send + Sync {
    /// The name used on the command line and in reports.
    fn name(&self) -> &'static str;

    /// The stored types it can compute with; a model with another is refused.
    fn weight_types(&self) -> &'static [DType];

    /// Returns the types that are computed as they are stored. Other types are decoded first, which is another
    /// computation than intended.
    fn native_types(&self) -> &'static [DType];

    /// Returns the type that the result of an operation is rounded to: `f32` without rounding.
    fn activation_type(&self) -> DType {
        DType::F32
    }

    /// The 8-bit integers that activations are rounded to where they meet weights that are not made for others; `None` for none.
    fn activation_codes(&self) -> Option<ActivationCodes> {
        None
    }

    /// Looks up rows of an embedding table: `[T, d]`.
    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor;

    /// Multiplies or divides each value by a number.
    fn scale(&self, x: &Tensor, by: Multiplier) -> Tensor;

    /// RMSNorm of each row: `[T, d]` or, per head, `[T, H, D]`.
    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor;

    /// LayerNorm of each row: `[T, d]`.
    fn layer_norm(&self, x: &Tensor, norm: &LayerNorm) -> Tensor;

    /// `x · wᵀ`: `[T, cols]` to `[T, rows]`.
    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor;

    /// [`Numerics::linear`] of those rows that are needed of a pass of `tokens`, each with the bits it has among all of
    /// them: where the order of sums depends on the number of rows, it is that of `tokens` rows.
    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, tokens: usize) -> Tensor {
        _ = tokens;
        self.linear(x, w)
    }

    /// Returns true if a product of `tokens` rows, and the operations around it, give each row the same bits as
    /// alone.
    fn adds_rows_alike(&self, w: &Matrix, tokens: usize) -> bool {
        _ = (w, tokens);
        true
    }

    /// `x · wᵀ + bias`: `[T, cols]` to `[T, rows]`.
    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor;

    /// A linear layer of BitNet, `x · wᵀ · factor`: `[T, cols]` to `[T, rows]`. References round the activations of each
    /// token to int8 for it.
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

    /// Cosines and sines for the positions of a pass.
    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable;

    /// Rotates each head of `[T, H, D]`.
    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor;

    /// The element type of the KV cache.
    fn cache_type(&self) -> DType;

    /// The relative error of keys and values in another engine's 8-bit cache whose scales are unknown; 0 if there is no such cache.
    fn cache_noise(&self) -> f64 {
        0.0
    }

    /// Returns the value that the KV cache stores for keys or values.
    fn to_cache(&self, x: Tensor) -> Tensor;

    /// `scale · q·k`: `[T, H, D]`, `[S, Hkv, D]` to `[H, T, S]`.
    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor;

    /// Masked softmax over keys: `[H, T, S]`.
    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor;

    /// `weights · v`, heads merged: `[H, T, S]`, `[S, Hkv, D]` to `[T, H·D]`.
    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor;

    /// Returns the type that the sum over values is rounded to after each key, in a pass of so many tokens: `f32`
    /// without rounding.
    fn sums_of_values(&self, tokens: usize) -> DType {
        _ = tokens;
        DType::F32
    }

    /// A nonlinearity, value by value.
    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor;

    /// `cap · tanh(x / cap)`, in the three steps in which it is written everywhere.
    fn soft_cap(&self, x: &Tensor, cap: f32) -> Tensor {
        let bent = self.activation(&self.scale(x, Multiplier::Divisor(cap)), Activation::Tanh);
        self.scale(&bent, Multiplier::Number(cap))
    }

    /// `activation(gate) · up`: GLU variants without their projections (Shazeer, 2020).
    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor;

    /// Computes the probability of each expert: softmax of a router's logits, `[T, E]`, always in `f32`.
    fn likelihoods(&self, logits: &Tensor) -> Tensor {
        let as_scores = logits.clone().reshaped(&[1, logits.rows(), logits.row_len()]);
        F32.softmax(&as_scores, Mask::NONE).reshaped(logits.shape())
    }

    /// The experts that each token chooses, by a router's logits: `[T, E]` to `[T, k]`, in the order of their numbers.
    fn choose(&self, logits: &Tensor, used: usize) -> Tensor {
        experts::choose(&self.likelihoods(logits), used)
    }

    /// Computes the weights of the chosen experts: `[T, E]`, `[T, k]` to `[T, k]`.
    fn expert_weights(&self, logits: &Tensor, chosen: &Tensor, routing: ExpertRouting) -> Tensor {
        let weights = experts::of_chosen(&self.likelihoods(logits), chosen);
        match routing.is_normalised {
            true => experts::normalised(weights, |row| {
                ExpertOrder::Weights.of(row).into_iter().map(|at| row[at]).sum()
            }),
            false => weights,
        }
    }

    /// [`Numerics::linear`] of the rows that have chosen one expert.
    fn linear_of_expert(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.linear(x, w)
    }

    /// The products of tokens with the matrices of the experts that they have chosen: `[T, cols]`, or `[T, k, cols]` of what
    /// each has made before, to `[T, k, rows]`.
    fn routed(&self, x: &Tensor, w: &[Matrix], chosen: &Tensor) -> Tensor {
        let outputs = w.first().map_or(0, |w| w.rows);
        experts::routed(x, chosen, outputs, |rows, expert| self.linear_of_expert(rows, &w[expert]))
    }

    /// The weighted sum of what the chosen experts have made: `[T, k, d]`, `[T, k]` to `[T, d]`.
    fn mix(&self, outputs: &Tensor, weights: &Tensor) -> Tensor {
        experts::mixed(outputs, weights, ExpertOrder::Weights, |x| x)
    }

    /// The residual add.
    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor;

    /// The row of `[T, V]` that a choice is made from: `[1, V]`. Nothing is computed.
    fn last_row(&self, logits: &Tensor) -> Tensor {
        logits.last_row()
    }

    /// softmax(logits / temperature) of one row.
    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor;

    /// log softmax(logits / temperature) of some tokens of each row: `[T, V]` to the shape of `picks`. No reference is
    /// replayed here: it is computed in `f64`, and rounded once.
    fn log_probabilities(&self, logits: &Tensor, picks: &Picks, temperature: f32) -> Tensor {
        let values = parallel::map(picks.rows.len(), 8 * logits.row_len(), |row| {
            log_probabilities(logits.row(picks.rows[row]), picks.row(row), picks.is_closed, temperature)
        });
        Tensor::new(&picks.shape, values.into_iter().flatten().map(|y| y as f32).collect())
    }
}
