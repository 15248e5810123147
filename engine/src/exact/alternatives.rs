//! Profiles in which one rounding choice is made differently, and the description of each choice.

use crate::exact::choice::{Choice, ChoiceSet};
use crate::exact::float::Float;
use crate::exact::profile::{FusedResults, Operands, Profile, RowScales, ScaledOperand};

impl Profile {
    /// Description of `f32` operands that are rounded as in matrix units.
    pub(crate) const SHORT_OPERANDS: &'static str = "operands are rounded to the 11 bits of TF32 and f16";
    const SHORT_SCORES: &'static str = "operands of scores alone are rounded to TF32, after each is scaled";
    const WHOLE_OPERANDS: &'static str = "operands are not rounded to TF32";
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
    const WHOLE_WEIGHTS: &'static str = "decoded weights are not rounded before products";
    const WEIGHTS_OF_KERNELS: &'static str = "decoded weights are those of a kernel that multiplies with codes or with scales of another type, and are \
         not rounded";
    const WHOLE_ACTIVATIONS: &'static str = "activations are not quantised";
    /// First words of the descriptions of rounding choices that an engine makes for the products of all layers. The
    /// entry for TF32 covers both rules for ties, because values without ties do not show which rule applies.
    pub const OF_ALL_LAYERS: [&'static str; 14] = [
        Self::SPLIT_BF16,
        Self::SPLIT_TF32,
        Self::SHORT_OPERANDS,
        Self::WHOLE_OPERANDS,
        Self::SHORT_SCORES,
        Self::CUT,
        Self::HALVES,
        Self::QUARTERS,
        Self::EIGHTHS,
        Self::ROUNDED_ROW_SCALES,
        Self::EXACT_ROW_SCALES,
        Self::WHOLE_ACTIVATIONS,
        Self::WHOLE_WEIGHTS,
        Self::WEIGHTS_OF_KERNELS,
    ];

    /// Returns a copy of the profile with one choice reversed, such as `f32` instead of the short type. `None` if the
    /// choice has no other option in this profile.
    pub(crate) fn with_other(&self, choice: Choice) -> Option<Self> {
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
            // cuBLAS computes products of one row, and small products of attention, in plain f32.
            Choice::Tf32 if p.operands.tf32().is_some() => {
                Self { operands: Operands::Whole, truncates: false, ..p }
            }
            Choice::Tf32 => p.with_operands(Operands::Tf32),
            Choice::Tf32Scores => {
                let short = if p.operands.tf32().is_some() { p } else { p.with_operands(Operands::Tf32) };
                match short.operands.tf32() {
                    Some(_) => Self { scaled: ScaledOperand::Both, whole_values: true, ..short },
                    None => p,
                }
            }
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
            Choice::WholeNormWeights if p.weights == Float::F32 => p,
            Choice::WholeNormWeights => Self { whole_norm_weights: !p.whole_norm_weights, ..p },
            Choice::WholeCosines if p.stream() == Float::F32 => p,
            Choice::WholeCosines => Self { rotated: short, whole_cosines: !p.whole_cosines, ..p },
            Choice::WholeWeights => Self { weights: Float::F32, ..p },
            Choice::WeightsOfKernels => Self { weights: Float::F32, weights_of_kernels: true, ..p },
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

    /// Rounds operands as matrix units do. Applies only to `f32` profiles.
    fn with_operands(self, operands: Operands) -> Self {
        let may_round = self.operands == Operands::Whole || self.operands.tf32().is_some();
        if self.results == Float::F32 && may_round {
            Self { operands, truncates: true, ..self }
        } else {
            self
        }
    }

    /// Splits operands as matrix units for short types do. Applies only to `f32` profiles.
    fn with_split_operands(self, operands: Operands) -> Self {
        let is_plain = self.results == Float::F32 && self.operands == Operands::Whole;
        if is_plain { Self { operands, ..self } } else { self }
    }

    /// Applies row scales after the sum. Applies only to profiles with a short type, because in f32 only the order
    /// would change.
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

    /// Splits sums over devices. Applies only to profiles with a short type, because in f32 only the order would
    /// change.
    fn in_parts(self, parts: usize) -> Self {
        let is_short = self.results != Float::F32 && self.operands == Operands::Whole;
        if is_short { Self { parts, ..self } } else { self }
    }

    /// Reverses each of these choices that has another option.
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
            Choice::ActivationChain => {
                "each step of the activation is rounded (gelu_new and clamped GLU: is not)".to_owned()
            }
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
                rounds(self.constants, "each constant of the activation function", "before it is used")
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
            Choice::Tf32 if self.operands == Operands::Whole => Self::WHOLE_OPERANDS.to_owned(),
            Choice::Tf32 => Self::SHORT_OPERANDS.to_owned(),
            Choice::Tf32Scores => Self::SHORT_SCORES.to_owned(),
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
                "a norm takes its mean square from the unrounded sum, and normalises the rounded one"
                    .to_owned()
            }
            Choice::MeanOfSums => "the mean square of a norm is computed after the sum is rounded".to_owned(),
            Choice::GainsAlone if self.gains_alone => {
                format!("1 + weight is rounded to {}, but the normed row is not", self.gains.name())
            }
            Choice::GainsAlone => "the normed row is rounded before the product with 1 + weight".to_owned(),
            Choice::Biased => rounds(self.biased, "a product", "before its bias is added"),
            Choice::ChainedNorms => {
                "norms, scores and scaled inputs are fused with the operations that read them, before any rounding"
                    .to_owned()
            }
            Choice::Chained => {
                "sums, norms, scores and scaled inputs are fused with the operations that read them, before any rounding"
                    .to_owned()
            }
            Choice::WideSums if self.wide_sums => "sums of the residual stream are not rounded".to_owned(),
            Choice::WideSums => "sums of the residual stream are rounded".to_owned(),
            Choice::SplitBf16 => Self::SPLIT_BF16.to_owned(),
            Choice::SplitTf32 => Self::SPLIT_TF32.to_owned(),
            Choice::RoundedRowScales => Self::ROUNDED_ROW_SCALES.to_owned(),
            Choice::ExactRowScales => Self::EXACT_ROW_SCALES.to_owned(),
            Choice::WholeWeights => Self::WHOLE_WEIGHTS.to_owned(),
            Choice::WeightsOfKernels => Self::WEIGHTS_OF_KERNELS.to_owned(),
            Choice::WholeNormWeights if self.whole_norm_weights => {
                "weights of norms are not rounded".to_owned()
            }
            Choice::WholeNormWeights => {
                format!("weights of norms are rounded to {}", self.weights.name())
            }
            Choice::WholeCosines => format!(
                "in a rotation, the product with the sine is rounded to {}, and the product with the cosine is not",
                self.rotated.name()
            ),
            Choice::WholeActivations => {
                format!("{} before products with these weights", Self::WHOLE_ACTIVATIONS)
            }
            Choice::Operands => {
                format!("activations are rounded to {} before products with weights", self.results.name())
            }
        }
    }
}
