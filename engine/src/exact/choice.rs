//! Rounding choices that correct engines make differently.

/// A rounding choice that correct engines make differently and that no manifest states today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Rounding of a norm's normalised row before the gain.
    Normed,
    /// Rounding of an activation before the product with the up projection.
    Activated,
    /// Rounding after each operation of an activation function.
    ActivationChain,
    /// GELU looked up in a table.
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
    /// Attention as one kernel, without rounding between its operations.
    Fused,
    /// Attention as one kernel that rounds exponentials before the product with values, and divides by their sum
    /// afterwards.
    Flash,
    /// Rounding of Gemma's gain, 1 + weight, and of the normed row before it.
    Gains,
    /// Rounding of the constants of an activation.
    Constants,
    /// Rounding of each step of LayerNorm.
    LayerNormed,
    /// Rounding of queries and attention weights to `f16`, in an `f32` engine.
    HalfAttention,
    /// Summation of exponentials one by one, which loses the small terms of a long row.
    OneByOne,
    /// Operands rounded to TF32, with truncated sums, as matrix units do with `f32`.
    Tf32,
    /// TF32 operands in the scores only, with queries and keys each scaled: torch's `sdpa` without a fused kernel.
    Tf32Scores,
    /// TF32 operands with ties away from zero.
    Tf32Away,
    /// TF32 operands by truncation.
    Tf32Cut,
    /// Truncation of sums, in engines with short results.
    Truncates,
    /// RMSNorm that reads a sum before rounding.
    NormOfSums,
    /// Logistic function with an absolute error bound, in `f32`.
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
    /// Sum of a product in two parts (halves of the columns), each rounded before the parts are added.
    Halves,
    /// Sum of a product in four parts, each rounded before the parts are added.
    Quarters,
    /// Sum of a product in eight parts, each rounded before the parts are added.
    Eighths,
    /// Norm of a sum whose mean square is computed before the sum is rounded, and whose row is the rounded sum.
    MeanOfSums,
    /// Rounding of Gemma's gain, 1 + weight, but not of the normed row.
    GainsAlone,
    /// Rounding of a product before its bias is added.
    Biased,
    /// Rounding of activations before products with weights. The dump may record the unrounded activations.
    Operands,
    /// Fusion of norms, scores and scaled inputs (`pre_quant_scale`) with the operations that read them.
    ChainedNorms,
    /// Fusion of sums, norms, scores and scaled inputs (`pre_quant_scale`) with the operations that read them.
    Chained,
    /// Row scales that are applied after the sum, which is rounded first.
    RoundedRowScales,
    /// Row scales that are applied after the sum, which is not rounded before.
    ExactRowScales,
    /// Activations that are not quantised before the product with these weights, although the engine quantises others.
    WholeActivations,
    /// Sums of the residual stream that stay `f32`.
    WideSums,
    /// Operands split into two bf16 numbers.
    SplitBf16,
    /// Operands split into two TF32 numbers.
    SplitTf32,
    /// Weights with more digits than the model's type, which are not rounded to it before products: kernels that apply
    /// the scales of quantised weights themselves.
    WholeWeights,
    /// Weight values of kernels that multiply the codes without first decoding the weight.
    WeightsOfKernels,
    /// Weights of norms that are not rounded to the model's type.
    WholeNormWeights,
    /// Rotation in which the product with the sine is rounded, but not the product with the cosine.
    WholeCosines,
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
        Choice::Tf32Scores,
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
        Choice::WholeWeights,
        Choice::WeightsOfKernels,
        Choice::WholeNormWeights,
        Choice::WholeCosines,
    ];

    /// Returns true for forms of TF32 other than the one that is tried first.
    pub(super) fn is_other_tf32(self) -> bool {
        matches!(self, Choice::Tf32Away | Choice::Tf32Cut | Choice::SplitBf16 | Choice::SplitTf32)
    }

    /// Returns true if the choice affects whether a norm reads the sum before it unrounded.
    pub(super) fn is_of_sums(self) -> bool {
        matches!(self, Choice::NormOfSums | Choice::MeanOfSums)
    }

    /// Returns true if the choice affects how the results of earlier operations are read.
    pub(super) fn is_of_chains(self) -> bool {
        matches!(self, Choice::ChainedNorms | Choice::Chained)
    }

    /// Returns true if the choice concerns products split over several devices.
    pub fn is_of_parts(self) -> bool {
        matches!(self, Choice::Halves | Choice::Quarters | Choice::Eighths)
    }

    /// Returns true if the choice keeps more digits in sums than in other results.
    pub(super) fn is_of_wide_sums(self) -> bool {
        self == Choice::WideSums
    }

    /// Returns true if an engine that makes the choice for a product makes it in every layer.
    pub(super) fn is_of_all_layers(self) -> bool {
        let is_of_operands = matches!(self, Choice::Tf32 | Choice::Tf32Scores | Choice::WholeActivations)
            || self.is_other_tf32()
            || matches!(self, Choice::WholeWeights | Choice::WeightsOfKernels);
        is_of_operands || self.is_of_parts() || self.is_of_row_scales()
    }

    /// Returns true for choices that few engines make.
    pub(super) fn is_rare(self) -> bool {
        matches!(self, Choice::WholeNormWeights | Choice::WholeCosines)
    }

    /// Returns true if the choice concerns row scales of integer weights.
    pub(super) fn is_of_row_scales(self) -> bool {
        matches!(self, Choice::RoundedRowScales | Choice::ExactRowScales)
    }
}

/// A set of rounding choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChoiceSet(u64);

impl ChoiceSet {
    /// Marks our engine's own profile, as opposed to that of the dump's engine.
    pub(super) const OWN: Self = Self(1 << 63);

    /// Returns the set with one more rounding choice.
    pub fn with(self, choice: Choice) -> Self {
        Self(self.0 | 1 << choice as u16)
    }

    /// Returns the choices in either set.
    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns all choices of the set.
    pub(crate) fn iter(self) -> impl Iterator<Item = Choice> {
        Choice::ALL.iter().copied().filter(move |&choice| self.0 & 1 << choice as u16 != 0)
    }
}

impl FromIterator<Choice> for ChoiceSet {
    fn from_iter<I: IntoIterator<Item = Choice>>(choices: I) -> Self {
        choices.into_iter().fold(Self::default(), Self::with)
    }
}
