//! Rounding profiles: where an engine rounds, and to which type, as data.

use serde::{Deserialize, Serialize};

use crate::exact::choice::ChoiceSet;
use crate::exact::float::Float;
use crate::numerics::{Roundings, TILE};
use crate::quant::ActivationCodes;
use crate::weight::{DType, Matrix};

/// Type that activations are rounded to before products with weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operands {
    /// No rounding.
    Whole,
    /// ggml's pairing with the type of the weights: Q8_0 blocks with Q4_0, `f16` with F16 …
    Ggml,
    /// ggml's pairing, except that F16 is not rounded: bitnet.cpp's products of several tokens.
    GgmlButF16,
    /// TF32, for activations and weights.
    Tf32,
    /// TF32 with ties away from zero, for activations and weights.
    Tf32Away,
    /// TF32 by truncation, for activations and weights.
    Tf32Cut,
    /// `f16`, for activations and weights.
    F16,
    /// `bf16`, for activations and weights.
    Bf16,
    /// Each operand is a sum of two `bf16` numbers; three of the four products are computed.
    SplitBf16,
    /// Each operand is a sum of two TF32 numbers; three of the four products are computed.
    SplitTf32,
}

impl Operands {
    /// Returns the TF32 rounding of matrix units, if the operands are TF32.
    pub fn tf32(self) -> Option<Float> {
        match self {
            Operands::Tf32 => Some(Float::Tf32),
            Operands::Tf32Away => Some(Float::Tf32Away),
            Operands::Tf32Cut => Some(Float::Tf32Cut),
            _ => None,
        }
    }

    /// Returns the type of the two numbers that an operand is split into. `None` if operands are not split.
    pub(crate) fn split(self) -> Option<Float> {
        match self {
            Operands::SplitBf16 => Some(Float::Bf16),
            Operands::SplitTf32 => Some(Float::Tf32),
            _ => None,
        }
    }
}

/// Step at which the row scales of integer weights are applied to a product: before or after the sum, with or
/// without rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowScales {
    /// The scale is part of the decoded weights.
    Decoded,
    /// The scale is applied after the sum over the integers, without rounding before it.
    Exact,
    /// The scale is applied after the sum over the integers is rounded to `results`.
    Rounded,
}

/// Computation of RoPE's angles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Angles {
    /// Computes position times frequency.
    Direct,
    /// Computes the frequency of each pair by multiplying that of the previous pair by a constant.
    Iterated,
}

/// Results that the next operation may read before rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FusedResults {
    /// No results: kernels read the stored values.
    Nothing,
    /// Results of norms, scores, tanh, short convolutions, multiplications by a number, and Mamba-2's dt with its bias.
    Norms,
    /// The results that `Norms` lists, and sums.
    All,
}

/// Operand that the scale of attention is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaledOperand {
    /// The operand that the model's authors scale: the queries in Gemma, the products in other models.
    Model,
    /// The products are scaled, in every model.
    Products,
    /// The queries are scaled, in every model.
    Queries,
    /// Queries and keys, each by the root of the scale: torch's `sdpa` without a fused kernel.
    Both,
}

/// Rounding profile of an engine. Every field may be given in a dump's manifest (`producer.rounding`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// Type that the result of every operation is rounded to.
    pub results: Float,
    /// True if embeddings, norms, rotations and the residual stream stay `f32` although `results` is a smaller type, as
    /// in torch's autocast, which only computes products in a short type. Attention operands are rounded like operands
    /// of other products.
    pub wide_stream: bool,
    /// True if only the residual stream's sums stay `f32` although `results` is a smaller type.
    pub wide_sums: bool,
    /// Type that a plain weight is rounded to before it is used.
    pub weights: Float,
    /// Type that activations are rounded to before products with weights.
    pub operands: Operands,
    /// Quantisation of activations to 8 or 4 bits before products with weights; `None` for no quantisation. Overrides
    /// `operands`.
    pub activation_codes: Option<ActivationCodes>,
    /// True if kernels multiply the weights' codes without first decoding the weights, which gives other weight values.
    /// Found by the search and not stated in manifests.
    #[serde(skip)]
    pub weights_of_kernels: bool,
    /// Step at which the row scales of integer weights are applied to a product. The scales are found from the decoded
    /// weights.
    pub row_scales: RowScales,
    /// True if the product of attention weights and values is plain `f32` although `operands` are TF32, because cuBLAS
    /// chooses a kernel by shape. Found by the search and not stated in manifests.
    #[serde(skip)]
    pub whole_values: bool,
    /// True if sums are truncated instead of rounded to nearest, as in NVIDIA's matrix units.
    pub truncates: bool,
    /// Number of partial sums that a dot product is split into.
    pub lanes: usize,
    /// Number of equal column ranges that a product is split into, as on the devices of tensor parallelism. Each
    /// partial sum is rounded to `results` before the reduction. Found by the search and not stated in manifests, since
    /// only some products of a model are split.
    #[serde(skip)]
    pub parts: usize,
    /// Largest error of a library function (exp, tanh, sin …), in units in the last place.
    pub library_ulps: f64,
    /// Type that a product is rounded to before a separate operation adds its bias.
    pub biased: Float,
    /// True if weights of norms are not rounded to `weights`. Found by the search and not stated in manifests.
    #[serde(skip)]
    pub whole_norm_weights: bool,
    /// True if RMSNorm of a sum reads the sum before rounding, as in norms that are fused with the addition before
    /// them.
    pub norm_of_sums: bool,
    /// True if only the mean square is computed from the sum before rounding, as in fused norms that then read the
    /// stored row.
    pub mean_of_sums: bool,
    /// Results that are fused with the operation that reads them. That operation may read them before rounding,
    /// although they are stored rounded.
    pub fused: FusedResults,
    /// Type that a normed row is rounded to before its gain.
    pub normed: Float,
    /// Type that 1 + weight, the gain of Gemma's norms, and the normed row before it are rounded to.
    pub gains: Float,
    /// True if the normed row is not rounded before Gemma's gain, 1 + weight.
    pub gains_alone: bool,
    /// Type that LayerNorm rounds the standardised row to, and the row's product with the weight.
    pub layer_normed: Float,
    /// Type that an activation is rounded to before the product with the up projection.
    pub activated: Float,
    /// True if an activation function is a chain of operations that each round to `results`. For transformers'
    /// `gelu_new` and clamped GLU, which are chains by default, true means that they are not.
    pub activation_chain: bool,
    /// Type that the constants of an activation are rounded to.
    pub constants: Float,
    /// True if the logistic function has an absolute error of up to 2⁻²², because it is computed by tanh or by a
    /// rational function.
    pub absolute_sigmoid: bool,
    /// True if (1 + erf(x / √2)) / 2 has an absolute error of up to 3.4·10⁻⁷, because it uses an approximate
    /// exponential.
    pub absolute_erf: bool,
    /// True if GELU is looked up in a table of `f16` numbers, for arguments between -10 and 10.
    pub gelu_table: bool,
    /// Type that the weights of experts are rounded to; always `results` if a model's authors round them.
    pub expert_weights: Float,
    /// Type that the product of an expert's output with its weight is rounded to before it is added.
    pub weighted: Float,
    /// Type that the sum over experts is rounded to after each expert, in the order of their indices.
    pub mixed: Float,
    /// Number of tokens that a gated delta rule computes together, as products of matrices; 1 for one token after the
    /// other.
    pub chunk: usize,
    /// Type of the operands of a gated delta rule: normed queries and keys, and operands of the products of a chunk.
    pub chunk_products: Float,
    /// Type that Mamba-2's single-token decode rounds its products to. Its state is `f32`.
    pub decode_products: Float,
    /// Computation of RoPE's angles.
    pub angles: Angles,
    /// Type that cosines and sines are rounded to.
    pub cos_sin: Float,
    /// Type that the two products of a rotation are rounded to before they are added.
    pub rotated: Float,
    /// True if the product with the cosine is not rounded, although the product with the sine is. Found by the search and
    /// not stated in manifests.
    #[serde(skip)]
    pub whole_cosines: bool,
    /// Type that queries are rounded to before products with keys.
    pub queries: Float,
    /// Operand that the scale of attention is applied to.
    pub scaled: ScaledOperand,
    /// Type that q·k is rounded to before its scale.
    pub dots: Float,
    /// Type that scores are rounded to.
    pub scores: Float,
    /// Type that softmax is rounded to.
    pub softmax: Float,
    /// Type that attention weights are rounded to before products with values.
    pub attention: Float,
    /// True if exponentials, rounded to `attention`, are multiplied by values before they are divided by their sum:
    /// flash attention.
    pub flash: bool,
    /// Type that the sum over values is rounded to after each key.
    pub sums: Float,
    /// True for ggml's flash attention. In a pass of fewer than 64 tokens, sums over values are rounded to the type of
    /// the cache after each key, and weights are not rounded. In longer passes, queries are not rounded either.
    pub ggml_flash: bool,
    /// True if exponentials are summed one by one in `f32`, which loses the small terms of a large vocabulary.
    pub one_by_one: bool,
    /// True if queries and attention weights are rounded to the type of the cache.
    pub follows_cache: bool,
    /// Choices that differ from the engine's stated profile. Set by the search, which tests whether they explain the
    /// engine's values.
    #[serde(skip)]
    pub made: ChoiceSet,
}

/// Returns a profile in which every operation computes in `f32`.
impl Default for Profile {
    fn default() -> Self {
        Self {
            results: Float::F32,
            wide_stream: false,
            wide_sums: false,
            weights: Float::F32,
            operands: Operands::Whole,
            activation_codes: None,
            weights_of_kernels: false,
            row_scales: RowScales::Decoded,
            whole_values: false,
            truncates: false,
            lanes: 1,
            parts: 1,
            library_ulps: 2.0,
            biased: Float::F32,
            whole_norm_weights: false,
            norm_of_sums: false,
            mean_of_sums: false,
            fused: FusedResults::Nothing,
            normed: Float::F32,
            gains: Float::F32,
            gains_alone: false,
            layer_normed: Float::F32,
            activated: Float::F32,
            activation_chain: false,
            constants: Float::F32,
            absolute_sigmoid: false,
            absolute_erf: false,
            gelu_table: false,
            expert_weights: Float::F32,
            weighted: Float::F32,
            mixed: Float::F32,
            chunk: 64,
            chunk_products: Float::F32,
            decode_products: Float::F32,
            angles: Angles::Direct,
            cos_sin: Float::F32,
            rotated: Float::F32,
            whole_cosines: false,
            queries: Float::F32,
            scaled: ScaledOperand::Model,
            dots: Float::F32,
            scores: Float::F32,
            softmax: Float::F32,
            attention: Float::F32,
            flash: false,
            sums: Float::F32,
            ggml_flash: false,
            one_by_one: false,
            follows_cache: false,
            made: ChoiceSet::default(),
        }
    }
}

impl Profile {
    /// Returns the profile of products with a matrix, without the settings that apply only to other matrices.
    pub(crate) fn of_product(&self, w: &Matrix) -> Self {
        let activation_codes = self.activation_codes.and_then(|codes| codes.of_product(w));
        let weights_of_kernels = self.weights_of_kernels && w.has_values_of_kernels();
        Self { activation_codes, weights_of_kernels, ..*self }
    }

    /// Returns true if the next operation reads a sum, or another fused result, before rounding.
    pub(crate) fn reads_sums(&self) -> bool {
        self.norm_of_sums || self.mean_of_sums || self.fused != FusedResults::Nothing
    }

    /// Returns the type that the residual stream, norms and rotations are rounded to.
    pub fn stream(&self) -> Float {
        if self.wide_stream { Float::F32 } else { self.results }
    }

    /// Returns the type that weights of norms are rounded to.
    pub(crate) fn norm_weights(&self) -> Float {
        if self.whole_norm_weights { Float::F32 } else { self.weights }
    }

    /// Returns the type of products, if products are rounded to a shorter type than other results.
    pub fn products(&self) -> Option<DType> {
        match self.results {
            Float::Bf16 if self.wide_stream => Some(DType::BF16),
            Float::F16 if self.wide_stream => Some(DType::F16),
            _ => None,
        }
    }

    /// Returns the relative rounding error of products, if products are rounded to a shorter type than other results.
    pub fn short_products(&self) -> Option<f64> {
        self.products().map(|_| self.results.unit())
    }

    /// Returns the type that the engine's matrix units round both operands of a product to.
    pub(crate) fn unit_of_products(&self) -> Float {
        match self.operands {
            Operands::F16 => Float::F16,
            Operands::Bf16 => Float::Bf16,
            operands => operands.tf32().unwrap_or(Float::F32),
        }
    }

    /// Returns the roundings of this profile that are coarser than those of `own`. Perturbed runs inject the errors of
    /// these. Errors of roundings that `own` shares are injected already.
    pub fn roundings_beyond(&self, own: &Self) -> Roundings {
        let unit = |field: fn(&Self) -> Float| {
            let [theirs, ours] = [field(self), field(own)].map(Float::unit);
            if theirs > ours { theirs } else { 0.0 }
        };
        let largest =
            |fields: &[fn(&Self) -> Float]| fields.iter().map(|&field| unit(field)).fold(0.0, f64::max);
        let results = if self.wide_stream { 0.0 } else { unit(|p| p.results) };
        // The second of two split numbers is rounded.
        let split = self
            .operands
            .split()
            .filter(|_| self.operands != own.operands)
            .map_or(0.0, |float| float.unit().powi(2));
        let operands =
            if self.wide_stream { 0.0 } else { largest(&[Self::unit_of_products, |p| p.weights]).max(split) };
        Roundings {
            results: results.max(unit(|p| p.biased)),
            operands,
            norms: largest(&[|p| p.normed, |p| p.gains, |p| p.layer_normed]),
            activated: largest(&[|p| p.activated, |p| p.constants]),
            rotations: largest(&[|p| p.cos_sin, |p| p.rotated]),
            queries: unit(|p| p.queries).max(operands),
            scores: largest(&[|p| p.dots, |p| p.scores]),
            attention: largest(&[|p| p.softmax, |p| p.attention]).max(operands),
            sums: unit(|p| p.sums),
            experts: largest(&[|p| p.expert_weights, |p| p.weighted, |p| p.mixed]),
            chunks: unit(|p| p.chunk_products),
        }
    }

    /// Returns the type of attention operands if the profile states no other type.
    pub(crate) fn attended(&self) -> Float {
        if self.wide_stream { self.results } else { self.operands.tf32().unwrap_or(Float::F32) }
    }

    /// Returns true if queries and keys are each multiplied by the root of the scale of attention.
    pub(crate) fn scales_both(&self) -> bool {
        self.scaled == ScaledOperand::Both
    }

    /// Returns the profile of the product of attention weights and values.
    pub(crate) fn of_values(self) -> Self {
        if self.whole_values { Self { operands: Operands::Whole, truncates: false, ..self } } else { self }
    }

    /// Returns the profile of attention in a pass of `tokens` tokens.
    pub(crate) fn attending(self, tokens: usize) -> Self {
        match (self.ggml_flash, self.operands) {
            (true, _) if tokens < TILE => Self { sums: self.attention, attention: Float::F32, ..self },
            (true, _) => Self { queries: Float::F32, attention: Float::F32, ..self },
            (_, Operands::GgmlButF16) if tokens > 1 => Self { attention: Float::F32, ..self },
            _ => self,
        }
    }
}
