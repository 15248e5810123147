//! Rounding profiles: where an engine rounds, and to which type, as data.

use serde::{Deserialize, Serialize};

use crate::exact::float::Float;
use crate::numerics::{Roundings, TILE};
use crate::quant::ActivationCodes;
use crate::weight::DType;

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
    pub(super) fn tf32(self) -> Option<Float> {
        match self {
            Operands::Tf32 => Some(Float::Tf32),
            Operands::Tf32Away => Some(Float::Tf32Away),
            Operands::Tf32Cut => Some(Float::Tf32Cut),
            _ => None,
        }
    }

    /// Returns the type of the two numbers that an operand is split in; `None` if operands are not split.
    pub(super) fn split(self) -> Option<Float> {
        match self {
            Operands::SplitBf16 => Some(Float::Bf16),
            Operands::SplitTf32 => Some(Float::Tf32),
            _ => None,
        }
    }
}

/// Application of integer weights' row scales to a product: before or after the sum, with or without rounding.
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
    /// Computes each pair's frequency from that of the previous pair.
    Iterated,
}

/// Results that the next operation may read before rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FusedResults {
    /// No results: kernels read the stored values.
    Nothing,
    /// Results of norms, scores, and multiplications by a number.
    Norms,
    /// Results of norms, scores, multiplications by a number, and sums.
    All,
}

/// Operand that the scale of attention is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaledOperand {
    /// The operand that the model's authors scale: the queries in Gemma, the products in other models.
    Model,
    /// The products, for every model.
    Products,
    /// The queries, for every model.
    Queries,
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
    /// 8-bit quantisation of activations before products with weights; `None` for no quantisation. Overrides
    /// `operands`.
    pub activation_codes: Option<ActivationCodes>,
    /// Application of integer weights' row scales to products. The scales are found in the decoded weights.
    pub row_scales: RowScales,
    /// True if sums are truncated instead of rounded to nearest, as in NVIDIA's matrix units.
    pub truncates: bool,
    /// Number of partial sums that a dot product is split in.
    pub lanes: usize,
    /// Number of equal column ranges that a product is split in, as on the devices of tensor parallelism. Each partial
    /// sum is rounded to `results` before the reduction. Found by the search and not stated in manifests, since only
    /// some products of a model are split.
    #[serde(skip)]
    pub parts: usize,
    /// Largest error of a library function (exp, tanh, sin …), in units in the last place.
    pub library_ulps: f64,
    /// Type that a product is rounded to before a separate operation adds its bias.
    pub biased: Float,
    /// True if RMSNorm of a sum reads it before rounding: norms fused with the addition before them.
    pub norm_of_sums: bool,
    /// True if only the mean square is computed from the sum before rounding: fused norms that read the stored row
    /// again.
    pub mean_of_sums: bool,
    /// Results that are fused with the operation that reads them: it may read them before rounding, although they are
    /// stored rounded.
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
    /// True if an activation is a chain of operations that each round to `results`. For transformers' `gelu_new`,
    /// which is a chain by default, true if it is not.
    pub activation_chain: bool,
    /// Type that the constants of an activation are rounded to.
    pub constants: Float,
    /// True if the logistic function has an absolute error of up to 2⁻²²: computed by tanh, or by a rational
    /// function.
    pub absolute_sigmoid: bool,
    /// True if (1 + erf(x / √2)) / 2 has an absolute error of up to 3.4·10⁻⁷, as with an approximate exponential.
    pub absolute_erf: bool,
    /// True if GELU comes from a table of `f16` for arguments between -10 and 10.
    pub gelu_table: bool,
    /// Type that the weights of experts are rounded to; always `results` if a model's authors round them.
    pub expert_weights: Float,
    /// Type that the product of an expert's output with its weight is rounded to before it is added.
    pub weighted: Float,
    /// Type that the sum over experts is rounded to after each expert, in the order of their indices.
    pub mixed: Float,
    /// Computation of RoPE's angles.
    pub angles: Angles,
    /// Type that cosines and sines are rounded to.
    pub cos_sin: Float,
    /// Type that the two products of a rotation are rounded to before they are added.
    pub rotated: Float,
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
    /// True for ggml's flash attention. In a pass of fewer than 64 tokens, `sums` have the type of the cache and
    /// weights are not rounded; in longer passes, queries are not rounded either.
    pub ggml_flash: bool,
    /// True if exponentials are summed one by one in `f32`, which loses the small ones of a large vocabulary.
    pub one_by_one: bool,
    /// True if queries and attention weights are rounded to the type of the cache.
    pub follows_cache: bool,
    /// Choices that differ from the engine's stated profile, to test if they explain its values.
    #[serde(skip)]
    pub made: ChoiceSet,
}

/// A set of rounding choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChoiceSet(u64);

impl ChoiceSet {
    /// Marks the profile of our engine instead of the dump's.
    pub(super) const OWN: Self = Self(1 << 63);

    /// Adds a choice.
    pub fn with(self, choice: Choice) -> Self {
        Self(self.0 | 1 << choice as u16)
    }

    /// Returns the choices in either set.
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns all choices of the set.
    pub fn iter(self) -> impl Iterator<Item = Choice> {
        Choice::ALL.iter().copied().filter(move |&choice| self.0 & 1 << choice as u16 != 0)
    }
}

impl FromIterator<Choice> for ChoiceSet {
    fn from_iter<I: IntoIterator<Item = Choice>>(choices: I) -> Self {
        choices.into_iter().fold(Self::default(), Self::with)
    }
}

/// Returns the profile of `f32` throughout.
impl Default for Profile {
    fn default() -> Self {
        Self {
            results: Float::F32,
            wide_stream: false,
            wide_sums: false,
            weights: Float::F32,
            operands: Operands::Whole,
            activation_codes: None,
            row_scales: RowScales::Decoded,
            truncates: false,
            lanes: 1,
            parts: 1,
            library_ulps: 2.0,
            biased: Float::F32,
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
            angles: Angles::Direct,
            cos_sin: Float::F32,
            rotated: Float::F32,
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

/// A rounding choice that correct engines make differently and that no manifest states today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Rounding of a normed row before its gain.
    Normed,
    /// Rounding of an activation before the up projection.
    Activated,
    /// Rounding of each operation of an activation.
    ActivationChain,
    /// GELU from a table.
    GeluTable,
    /// Rounding of cosines and sines.
    CosSin,
    /// Rounding of the products of a rotation.
    Rotated,
    /// The scale of attention applied to the queries, which are then rounded.
    ScaledQueries,
    /// Rounding of q·k before its scale.
    Dots,
    /// Rounding of scores.
    Scores,
    /// Rounding of softmax.
    Softmax,
    /// Attention as one kernel without rounding inside.
    Fused,
    /// Attention as one kernel that rounds exponentials before the product with values, and divides by their sum
    /// afterwards.
    Flash,
    /// Rounding of 1 + weight, Gemma's gain, and of the normed row before it.
    Gains,
    /// Rounding of the constants of an activation.
    Constants,
    /// Rounding of each step of LayerNorm.
    LayerNormed,
    /// Rounding of queries and attention weights to `f16`, in an `f32` engine.
    HalfAttention,
    /// Summation of exponentials one by one, which loses the small ones of a long row.
    OneByOne,
    /// Operands rounded to TF32, with truncated sums, as matrix units do with `f32`.
    Tf32,
    /// TF32 operands with ties away from zero.
    Tf32Away,
    /// TF32 operands by truncation.
    Tf32Cut,
    /// Truncation of sums, in engines with short results.
    Truncates,
    /// RMSNorm that reads a sum before rounding.
    NormOfSums,
    /// Logistic function with an absolute error, in `f32`.
    AbsoluteSigmoid,
    /// ggml's flash attention.
    GgmlFlash,
    /// Rounding of the weights of experts.
    ExpertWeights,
    /// Rounding of weighted outputs of experts before they are added.
    Weighted,
    /// Rounding of the sum over experts after each expert.
    Mixed,
    /// An `f32` error function (erf) with an absolute instead of a relative error bound.
    AbsoluteErf,
    /// Rounding of the sums over both halves of the columns before they are added.
    Halves,
    /// Rounding of the sums over quarters of the columns before they are added.
    Quarters,
    /// Rounding of the sums over eighths of the columns before they are added.
    Eighths,
    /// Mean square of a sum before rounding, with the row after rounding.
    MeanOfSums,
    /// Rounding of 1 + weight, Gemma's gain, without rounding of the normed row.
    GainsAlone,
    /// Rounding of a product before its bias is added.
    Biased,
    /// Rounding of activations before products with weights: a dump may hold them with more digits.
    Operands,
    /// Norms and scores fused with the operations that read them.
    ChainedNorms,
    /// Sums, norms and scores fused with the operations that read them.
    Chained,
    /// Row scales applied after the sum, which is rounded first.
    RoundedRowScales,
    /// Row scales applied after the sum, without rounding before them.
    ExactRowScales,
    /// Activations that are not quantised before the product with these weights, in an engine that quantises others.
    WholeActivations,
    /// Sums of the residual stream that stay `f32`.
    WideSums,
    /// Operands split in two bf16 numbers.
    SplitBf16,
    /// Operands split in two TF32 numbers.
    SplitTf32,
}

impl Choice {
    const ALL: &'static [Choice] = &[
        Choice::Normed,
        Choice::Activated,
        Choice::ActivationChain,
        Choice::GeluTable,
        Choice::CosSin,
        Choice::Rotated,
        Choice::ScaledQueries,
        Choice::Dots,
        Choice::Scores,
        Choice::Softmax,
        Choice::Fused,
        Choice::Flash,
        Choice::Gains,
        Choice::Constants,
        Choice::LayerNormed,
        Choice::HalfAttention,
        Choice::OneByOne,
        Choice::Tf32,
        Choice::Tf32Away,
        Choice::Tf32Cut,
        Choice::Truncates,
        Choice::NormOfSums,
        Choice::AbsoluteSigmoid,
        Choice::GgmlFlash,
        Choice::ExpertWeights,
        Choice::Weighted,
        Choice::Mixed,
        Choice::AbsoluteErf,
        // Choices that the weights themselves reveal come before choices that only sums reveal.
        Choice::RoundedRowScales,
        Choice::ExactRowScales,
        Choice::Halves,
        Choice::Quarters,
        Choice::Eighths,
        Choice::MeanOfSums,
        Choice::GainsAlone,
        Choice::Biased,
        Choice::Operands,
        Choice::ChainedNorms,
        Choice::Chained,
        Choice::WholeActivations,
        Choice::WideSums,
        Choice::SplitBf16,
        Choice::SplitTf32,
    ];

    /// Returns true for the alternatives to the TF32 form that is tried first.
    pub(super) fn is_other_tf32(self) -> bool {
        matches!(self, Choice::Tf32Away | Choice::Tf32Cut | Choice::SplitBf16 | Choice::SplitTf32)
    }

    /// Returns true if it changes how a norm reads the sum before it.
    pub(super) fn is_of_sums(self) -> bool {
        matches!(self, Choice::NormOfSums | Choice::MeanOfSums)
    }

    /// Returns true if it changes how the results of earlier operations are read.
    pub(super) fn is_of_chains(self) -> bool {
        matches!(self, Choice::ChainedNorms | Choice::Chained)
    }

    /// Returns true if the choice concerns products split over several devices.
    pub(super) fn is_of_parts(self) -> bool {
        matches!(self, Choice::Halves | Choice::Quarters | Choice::Eighths)
    }

    /// Returns true if the choice keeps more digits in sums than in other results.
    pub(super) fn is_of_wide_sums(self) -> bool {
        self == Choice::WideSums
    }

    /// Returns true if an engine that makes the choice for a product makes it in every layer.
    pub(super) fn is_of_all_layers(self) -> bool {
        let told = Profile::default().told(self);
        Profile::OF_ALL_LAYERS.iter().any(|shared| told.starts_with(shared))
    }

    /// Returns true if the choice concerns row scales of integer weights.
    pub(super) fn is_of_row_scales(self) -> bool {
        matches!(self, Choice::RoundedRowScales | Choice::ExactRowScales)
    }
}

impl Profile {
    /// Description of `f32` operands that are rounded as in matrix units.
    pub const SHORT_OPERANDS: &'static str = "operands are rounded to the 11 bits of TF32 and f16";
    const AWAY: &'static str = "operands are rounded to the 11 bits of TF32 and f16, ties away from zero";
    const CUT: &'static str = "operands are truncated to the 11 bits of TF32";
    const HALVES: &'static str = "sums over 2 parts of the columns are rounded before they are added";
    const QUARTERS: &'static str = "sums over 4 parts of the columns are rounded before they are added";
    const EIGHTHS: &'static str = "sums over 8 parts of the columns are rounded before they are added";
    const ROUNDED_ROW_SCALES: &'static str =
        "the product with integer weights is rounded before the scale of its row is applied";
    const EXACT_ROW_SCALES: &'static str =
        "the scale of a row is applied after the product with integer weights is summed";
    const SPLIT_BF16: &'static str =
        "operands are split into two numbers of bf16, and three of four products are added";
    const SPLIT_TF32: &'static str =
        "operands are split into two numbers of TF32, and three of four products are added";
    const WHOLE_ACTIVATIONS: &'static str = "activations are not rounded to 8-bit integers";
    /// First words of the descriptions of choices that apply to the products of every layer. Descriptions without
    /// `ties` do not
    /// determine the direction of ties.
    pub const OF_ALL_LAYERS: [&'static str; 10] = [
        Self::SPLIT_BF16,
        Self::SPLIT_TF32,
        Self::SHORT_OPERANDS,
        Self::CUT,
        Self::HALVES,
        Self::QUARTERS,
        Self::EIGHTHS,
        Self::ROUNDED_ROW_SCALES,
        Self::EXACT_ROW_SCALES,
        Self::WHOLE_ACTIVATIONS,
    ];

    /// Returns a copy of the profile with one choice switched to its other option, such as `f32` instead of the short
    /// type. `None` if the choice has no other option in this profile.
    pub fn with_other(&self, choice: Choice) -> Option<Self> {
        let short = self.results;
        let toggled = |float: Float| if float == Float::F32 { short } else { Float::F32 };
        let p = *self;
        let in_one_kernel = Self { dots: Float::F32, scores: Float::F32, softmax: Float::F32, ..p };
        let other = match choice {
            Choice::Normed => Self { normed: toggled(p.normed), ..p },
            Choice::Activated => Self { activated: toggled(p.activated), ..p },
            Choice::ActivationChain => {
                Self { activation_chain: !p.activation_chain && short != Float::F32, ..p }
            }
            Choice::GeluTable => Self { gelu_table: !p.gelu_table, ..p },
            Choice::CosSin => Self { cos_sin: toggled(p.cos_sin), ..p },
            Choice::Rotated => Self { rotated: toggled(p.rotated), ..p },
            Choice::ScaledQueries if p.scaled == ScaledOperand::Queries => p,
            Choice::ScaledQueries => Self { scaled: ScaledOperand::Queries, queries: short, ..p },
            Choice::Dots => Self { dots: toggled(p.dots), ..p },
            Choice::Scores => Self { scores: toggled(p.scores), ..p },
            Choice::Softmax => Self { softmax: toggled(p.softmax), ..p },
            Choice::Fused if short != Float::F32 => {
                Self { flash: false, attention: Float::F32, ..in_one_kernel }
            }
            Choice::Flash if short != Float::F32 => Self { flash: true, attention: short, ..in_one_kernel },
            Choice::Fused | Choice::Flash => p,
            Choice::Constants => Self { constants: toggled(p.constants), ..p },
            Choice::Gains => Self { gains: toggled(p.gains), ..p },
            Choice::LayerNormed => Self { layer_normed: toggled(p.layer_normed), ..p },
            Choice::HalfAttention if short == Float::F32 && p.queries == Float::F32 => {
                Self { queries: Float::F16, attention: Float::F16, ..p }
            }
            Choice::HalfAttention => p,
            Choice::OneByOne => Self { one_by_one: !p.one_by_one, ..p },
            Choice::Tf32 => p.with_operands(Operands::Tf32),
            Choice::Tf32Away => p.with_operands(Operands::Tf32Away),
            Choice::Tf32Cut => p.with_operands(Operands::Tf32Cut),
            // Never presumed in f32, where it would excuse every biased error.
            Choice::Truncates if short == Float::F32 => p,
            Choice::Truncates => Self { truncates: !p.truncates, ..p },
            Choice::AbsoluteSigmoid if short == Float::F32 => {
                Self { absolute_sigmoid: !p.absolute_sigmoid, ..p }
            }
            Choice::AbsoluteErf if short == Float::F32 => Self { absolute_erf: !p.absolute_erf, ..p },
            Choice::AbsoluteSigmoid | Choice::AbsoluteErf => p,
            Choice::GgmlFlash if p.follows_cache => Self { ggml_flash: !p.ggml_flash, ..p },
            Choice::GgmlFlash => p,
            Choice::ExpertWeights => Self { expert_weights: toggled(p.expert_weights), ..p },
            Choice::Weighted => Self { weighted: toggled(p.weighted), ..p },
            Choice::Mixed => Self { mixed: toggled(p.mixed), ..p },
            Choice::Halves => p.in_parts(2),
            Choice::Quarters => p.in_parts(4),
            Choice::Eighths => p.in_parts(8),
            Choice::NormOfSums if p.stream() == Float::F32 => p,
            Choice::NormOfSums => Self { norm_of_sums: !p.norm_of_sums, ..p },
            Choice::MeanOfSums if p.stream() == Float::F32 || p.norm_of_sums => p,
            Choice::MeanOfSums => Self { mean_of_sums: !p.mean_of_sums, ..p },
            Choice::GainsAlone if short == Float::F32 => p,
            Choice::GainsAlone => Self { gains: short, gains_alone: !p.gains_alone, ..p },
            Choice::Biased => Self { biased: toggled(p.biased), ..p },
            Choice::Operands => p.with_short_operands(),
            Choice::ChainedNorms => p.fusing(FusedResults::Norms),
            Choice::Chained => p.fusing(FusedResults::All),
            Choice::RoundedRowScales => p.with_row_scales(RowScales::Rounded),
            Choice::ExactRowScales => p.with_row_scales(RowScales::Exact),
            Choice::WideSums if p.stream() == Float::F32 => p,
            Choice::WideSums => Self { wide_sums: !p.wide_sums, ..p },
            Choice::SplitBf16 => p.with_split_operands(Operands::SplitBf16),
            Choice::SplitTf32 => p.with_split_operands(Operands::SplitTf32),
            Choice::WholeActivations => Self { activation_codes: None, row_scales: RowScales::Decoded, ..p },
        };
        (other != p).then_some(other)
    }

    /// Fuses the operations, so that no result between them is rounded.
    fn fusing(self, fused: FusedResults) -> Self {
        if self.stream() == Float::F32 || self.fused != FusedResults::Nothing {
            return self;
        }
        let whole = Float::F32;
        Self { fused, normed: whole, layer_normed: whole, cos_sin: whole, rotated: whole, ..self }
    }

    /// Rounds operands as matrix units do. Applies to `f32` profiles only.
    fn with_operands(self, operands: Operands) -> Self {
        let is_plain = self.results == Float::F32 && self.operands == Operands::Whole;
        if is_plain { Self { operands, truncates: true, ..self } } else { self }
    }

    /// Splits operands as matrix units for short types do. Applies to `f32` profiles only.
    fn with_split_operands(self, operands: Operands) -> Self {
        let is_plain = self.results == Float::F32 && self.operands == Operands::Whole;
        if is_plain { Self { operands, ..self } } else { self }
    }

    /// Applies row scales later. Applies to profiles with a short type; in f32 only the order would change.
    fn with_row_scales(self, row_scales: RowScales) -> Self {
        let is_new = self.results != Float::F32 && self.row_scales == RowScales::Decoded;
        if is_new { Self { row_scales, ..self } } else { self }
    }

    /// Rounds operands to the result type, if that is a short type.
    fn with_short_operands(self) -> Self {
        match (self.operands, self.results) {
            (Operands::Whole, Float::Bf16) => Self { operands: Operands::Bf16, ..self },
            (Operands::Whole, Float::F16) => Self { operands: Operands::F16, ..self },
            _ => self,
        }
    }

    /// Splits sums over devices. Applies to profiles with a short type; in f32 only the order would change.
    fn in_parts(self, parts: usize) -> Self {
        let is_short = self.results != Float::F32 && self.operands == Operands::Whole;
        if is_short { Self { parts, ..self } } else { self }
    }

    /// Returns true if a sum, or another fused result, is read before rounding.
    pub(super) fn reads_sums(&self) -> bool {
        self.norm_of_sums || self.mean_of_sums || self.fused != FusedResults::Nothing
    }

    /// Returns the type that the residual stream, norms and rotations are rounded to.
    pub fn stream(&self) -> Float {
        if self.wide_stream { Float::F32 } else { self.results }
    }

    /// Returns the type of products, if only products have a short type.
    pub fn products(&self) -> Option<DType> {
        match self.results {
            Float::Bf16 if self.wide_stream => Some(DType::BF16),
            Float::F16 if self.wide_stream => Some(DType::F16),
            _ => None,
        }
    }

    /// Returns the relative rounding error of products, if only products have a short type.
    pub fn short_products(&self) -> Option<f64> {
        self.products().map(|_| self.results.unit())
    }

    /// Returns the type that the engine's matrix units round both operands of a product to.
    pub(super) fn unit_of_products(&self) -> Float {
        match self.operands {
            Operands::F16 => Float::F16,
            Operands::Bf16 => Float::Bf16,
            operands => operands.tf32().unwrap_or(Float::F32),
        }
    }

    /// Returns the roundings of this profile that are coarser than those of `own`. Perturbed runs inject their errors;
    /// errors of roundings that `own` shares are injected already.
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
        }
    }

    /// Returns the type of attention operands if the profile states no other type.
    pub(super) fn attended(&self) -> Float {
        if self.wide_stream { self.results } else { self.operands.tf32().unwrap_or(Float::F32) }
    }

    /// Returns the attention profile for a pass of `tokens` tokens.
    pub(super) fn attending(self, tokens: usize) -> Self {
        match (self.ggml_flash, self.operands) {
            (true, _) if tokens < TILE => Self { sums: self.attention, attention: Float::F32, ..self },
            (true, _) => Self { queries: Float::F32, attention: Float::F32, ..self },
            (_, Operands::GgmlButF16) if tokens > 1 => Self { attention: Float::F32, ..self },
            _ => self,
        }
    }

    /// Applies the alternatives of these choices, as far as each has one.
    pub fn otherwise(&self, choices: ChoiceSet) -> Self {
        let other = |profile: Self, choice| profile.with_other(choice).unwrap_or(profile);
        Self { made: choices, ..choices.iter().fold(*self, other) }
    }

    /// Describes a choice in this profile.
    pub fn told(&self, choice: Choice) -> String {
        let rounds = |float: Float, what: &str, before: &str| match float {
            Float::F32 => format!("{what} is not rounded {before}"),
            _ => format!("{what} is rounded to {} {before}", float.name()),
        };
        match choice {
            Choice::Normed => rounds(self.normed, "the normed row", "before its gain"),
            Choice::Activated => rounds(self.activated, "the activation", "before the up projection"),
            Choice::ActivationChain => "each step of the activation is rounded (gelu_new: is not)".to_owned(),
            Choice::GeluTable if self.gelu_table => "GELU comes from a table of f16".to_owned(),
            Choice::GeluTable => "GELU does not come from a table of f16".to_owned(),
            Choice::CosSin => rounds(self.cos_sin, "RoPE's table", "before it is used"),
            Choice::Rotated => rounds(self.rotated, "each product of a rotation", "before it is added"),
            Choice::ScaledQueries => "the scale of attention is applied to the queries".to_owned(),
            Choice::Dots => rounds(self.dots, "q·k", "before its scale"),
            Choice::Scores => rounds(self.scores, "a score", "before softmax"),
            Choice::Softmax => rounds(self.softmax, "an attention weight", "after softmax"),
            Choice::Fused => "attention is one fused kernel without rounding inside".to_owned(),
            Choice::Flash => format!(
                "attention is one fused kernel, which rounds exponentials to {} before they are divided by their sum",
                self.attention.name()
            ),
            Choice::Constants => {
                rounds(self.constants, "each constant of the activation", "before it is used")
            }
            Choice::Gains => rounds(self.gains, "1 + weight", "before the product with the normed row"),
            Choice::LayerNormed => rounds(self.layer_normed, "each step of LayerNorm", "before the next"),
            Choice::GgmlFlash if self.ggml_flash => {
                format!("flash attention as in ggml: values are accumulated in {}", self.attention.name())
            }
            Choice::GgmlFlash => "no flash attention".to_owned(),
            Choice::ExpertWeights => {
                rounds(self.expert_weights, "the weight of an expert", "before it is used")
            }
            Choice::Weighted => {
                rounds(self.weighted, "the weighted output of an expert", "before it is added")
            }
            Choice::Mixed => rounds(self.mixed, "the sum over experts", "after each expert"),
            Choice::HalfAttention => "queries and attention weights are rounded to f16".to_owned(),
            Choice::OneByOne => "exponentials are summed one by one in f32".to_owned(),
            Choice::Tf32 => Self::SHORT_OPERANDS.to_owned(),
            Choice::Tf32Away => Self::AWAY.to_owned(),
            Choice::Tf32Cut => Self::CUT.to_owned(),
            Choice::Halves => Self::HALVES.to_owned(),
            Choice::Quarters => Self::QUARTERS.to_owned(),
            Choice::Eighths => Self::EIGHTHS.to_owned(),
            Choice::Truncates => "sums are truncated, not rounded to nearest".to_owned(),
            Choice::AbsoluteSigmoid if self.absolute_sigmoid => {
                "the logistic function has an absolute error of up to 2⁻²²".to_owned()
            }
            Choice::AbsoluteSigmoid => {
                "the logistic function is accurate relative to its value, without a fixed absolute error"
                    .to_owned()
            }
            Choice::AbsoluteErf if self.absolute_erf => "erf has an absolute error of up to 7e-7".to_owned(),
            Choice::AbsoluteErf => {
                "erf is accurate relative to its value, without a fixed absolute error".to_owned()
            }
            Choice::NormOfSums if self.norm_of_sums => "a norm reads the sum before it is rounded".to_owned(),
            Choice::NormOfSums => "a norm reads the sum after it is rounded".to_owned(),
            Choice::MeanOfSums if self.mean_of_sums => {
                "the mean square of a norm is computed before the sum is rounded, and the row after it"
                    .to_owned()
            }
            Choice::MeanOfSums => "the mean square of a norm is computed after the sum is rounded".to_owned(),
            Choice::GainsAlone if self.gains_alone => {
                format!("1 + weight is rounded to {}, but the normed row is not", self.gains.name())
            }
            Choice::GainsAlone => "the normed row is rounded before the product with 1 + weight".to_owned(),
            Choice::Biased => rounds(self.biased, "a product", "before its bias is added"),
            Choice::ChainedNorms => {
                "norms and scores are fused with the operations that read them, before any rounding"
                    .to_owned()
            }
            Choice::Chained => {
                "sums, norms and scores are fused with the operations that read them, before any rounding"
                    .to_owned()
            }
            Choice::WideSums if self.wide_sums => "sums of the residual stream are not rounded".to_owned(),
            Choice::WideSums => "sums of the residual stream are rounded".to_owned(),
            Choice::SplitBf16 => Self::SPLIT_BF16.to_owned(),
            Choice::SplitTf32 => Self::SPLIT_TF32.to_owned(),
            Choice::RoundedRowScales => Self::ROUNDED_ROW_SCALES.to_owned(),
            Choice::ExactRowScales => Self::EXACT_ROW_SCALES.to_owned(),
            Choice::WholeActivations => {
                format!("{} before products with these weights", Self::WHOLE_ACTIVATIONS)
            }
            Choice::Operands => {
                format!("activations are rounded to {} before products with weights", self.results.name())
            }
        }
    }
}
