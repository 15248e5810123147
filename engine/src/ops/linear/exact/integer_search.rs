//! Search for the way in which an engine quantises activations, based on the results of its products.

use std::cell::LazyCell;

use crate::exact::{Float, Profile, ResultPair, RowScales, exacts_explain, node_of};
use crate::ops::experts::exact::ExpertProducts;
use crate::ops::linear::exact::Linear;
use crate::quant::{ActivationCodeType, ActivationCodes, CodeGroup, ScaleType};
use crate::weight::{InputCodes, InputScale, Matrix};

/// A way to compute products of quantised activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IntegerProducts {
    /// Quantisation of the activations.
    pub codes: ActivationCodes,
    /// Step at which the row scales of the weights are applied.
    pub row_scales: RowScales,
    /// True if decoded weights are not rounded: kernels apply the scales of weights to sums.
    pub has_whole_weights: bool,
}

/// Number of values that rule out most candidates, and number of values on which the remaining candidates are
/// tested.
const FEW: usize = 48;
const MANY: usize = 2048;
/// Smallest ratio of two distances of the values: to the exact product, and to the product of integers. Codes of
/// unrecorded operands may be off by one, so error bounds alone would explain any engine's values.
const NEARER: f64 = 2.0;

impl IntegerProducts {
    /// Returns every candidate, for an engine with results of type `results`.
    pub fn all(results: Float) -> Vec<Self> {
        let groups = [32, 64, 128, 256, 16]
            .map(CodeGroup::Values)
            .into_iter()
            .chain([CodeGroup::Token, CodeGroup::Pass]);
        let ends = [(127.0, false), (127.5, false), (128.0, false), (127.0, true)];
        let scales = [ScaleType::F32, ScaleType::F16, ScaleType::Bf16];
        let row_scales: &[RowScales] = match results {
            Float::F32 => &[RowScales::Decoded],
            _ => &[RowScales::Decoded, RowScales::Exact, RowScales::Rounded],
        };
        let of = |group| {
            scales.into_iter().flat_map(move |scale| {
                ends.into_iter().flat_map(move |(largest, asymmetric)| {
                    let codes =
                        ActivationCodes { group, scale, largest, asymmetric, ..ActivationCodes::default() };
                    row_scales.iter().map(move |&row_scales| Self { row_scales, ..Self::of_decoded(codes) })
                })
            })
        };
        groups.flat_map(of).chain(Self::of_short_quotients(results)).chain(Self::floats(results)).collect()
    }

    /// Returns the candidate for a matrix whose file states a threshold for outliers.
    pub fn with_outliers(threshold: f32) -> Vec<Self> {
        let codes = ActivationCodes::with_outliers(threshold);
        vec![Self { has_whole_weights: true, ..Self::of_decoded(codes) }]
    }

    /// Returns the candidates for matrices whose file states the codes of activations; `None` if the file states none.
    pub fn stored<'m>(results: Float, matrices: impl Iterator<Item = &'m Matrix>) -> Option<Vec<Self>> {
        let mut inputs: Vec<InputScale> = Vec::new();
        for input in matrices.filter_map(Matrix::input_scale) {
            if inputs.iter().all(|known| known.codes != input.codes) {
                inputs.push(input);
            }
        }
        // The same types apply to all formats of codes. Powers of two apply to some of them.
        let mut all: Vec<Self> = Vec::new();
        for candidate in inputs.iter().flat_map(|input| Self::of_input(results, input)) {
            let codes =
                ActivationCodes { codes: ActivationCodes::of_matrix(&inputs[0]).codes, ..candidate.codes };
            let candidate = Self { codes, ..candidate };
            if !all.contains(&candidate) {
                all.push(candidate);
            }
        }
        (!all.is_empty()).then_some(all)
    }

    /// Returns the candidates for a format of stated codes.
    fn of_input(results: Float, input: &InputScale) -> Vec<Self> {
        // Types of scales and of quotients.
        const SINGLE: (ScaleType, ScaleType) = (ScaleType::F32, ScaleType::F32);
        let short = short_type(results);
        let types: Vec<(ScaleType, ScaleType)> = match (input.codes, short) {
            (InputCodes::Mxfp4 | InputCodes::Mxfp8, _) => {
                ScaleType::POWERS.map(|power| (power, ScaleType::F32)).into()
            }
            (_, None) => vec![SINGLE],
            (_, Some(short)) => vec![SINGLE, (short, short)],
        };
        let of_types =
            |(scale, quotients)| ActivationCodes { scale, quotients, ..ActivationCodes::of_matrix(input) };
        // Engines that compute in single precision and round decoded values to the type of the model. Decoded values of
        // formats with powers of two are numbers of bf16.
        let single: &[_] = match (short, input.codes.has_powers()) {
            (Some(ScaleType::F16), true) => &types,
            (Some(_), false) => &[SINGLE],
            _ => &[],
        };
        let rounded = single.iter().map(|&types| ActivationCodes { values: short, ..of_types(types) });
        let codes: Vec<_> = types.iter().copied().map(of_types).chain(rounded).collect();
        // vLLM divides by 127, compressed-tensors by 127.5.
        let largest: &[f32] = if input.codes == InputCodes::Int8Groups { &[127.0, 127.5] } else { &[127.0] };
        let with_largest =
            |codes: ActivationCodes| largest.iter().map(move |&largest| ActivationCodes { largest, ..codes });
        let codes = codes.into_iter().flat_map(with_largest);
        let weights = |codes| {
            let decoded = Self::of_decoded(codes);
            let whole = Self { has_whole_weights: true, ..decoded };
            [decoded, whole].into_iter().take(1 + usize::from(short.is_some()))
        };
        codes.flat_map(weights).collect()
    }

    /// Returns integer products whose quotients are rounded to the type of the results, as in compressed-tensors.
    fn of_short_quotients(results: Float) -> impl Iterator<Item = Self> {
        let ends = [(127.5, false), (127.0, true)];
        let of = move |short: ScaleType| {
            [CodeGroup::Token, CodeGroup::Values(128)].into_iter().flat_map(move |group| {
                ends.into_iter().map(move |(largest, asymmetric)| ActivationCodes {
                    group,
                    scale: short,
                    quotients: short,
                    largest,
                    asymmetric,
                    ..ActivationCodes::default()
                })
            })
        };
        short_type(results).into_iter().flat_map(of).map(Self::of_decoded)
    }

    /// Returns 8-bit floats, including those of MXFP8.
    fn floats(results: Float) -> impl Iterator<Item = Self> {
        let groups = [CodeGroup::Values(128), CodeGroup::Token, CodeGroup::Pass];
        let short = short_type(results).map(|short| (short, short));
        let types = [(ScaleType::F32, ScaleType::F32)].into_iter().chain(short);
        let powers = ScaleType::POWERS.map(|power| (CodeGroup::Values(32), (power, ScaleType::F32)));
        let ways = groups.into_iter().flat_map(move |group| types.clone().map(move |types| (group, types)));
        let codes = ways.chain(powers).map(|(group, (scale, quotients))| ActivationCodes {
            group,
            codes: ActivationCodeType::F8E4m3,
            scale,
            quotients,
            ..ActivationCodes::default()
        });
        let is_short = short.is_some();
        let weights = move |codes| {
            let rounded = Self::of_decoded(codes);
            let whole = Self { has_whole_weights: true, ..rounded };
            [Some(rounded), is_short.then_some(whole)].into_iter().flatten()
        };
        codes.flat_map(weights)
    }

    /// Returns products of decoded weights with quantised activations.
    pub fn of_decoded(codes: ActivationCodes) -> Self {
        Self { codes, row_scales: RowScales::Decoded, has_whole_weights: false }
    }

    /// Returns the profile of an engine that multiplies in this way.
    pub(crate) fn profile(self, profile: Profile) -> Profile {
        let weights = if self.has_whole_weights { Float::F32 } else { profile.weights };
        Profile { activation_codes: Some(self.codes), row_scales: self.row_scales, weights, ..profile }
    }
}

/// Returns the 16-bit type of an engine's results.
pub(crate) fn short_type(results: Float) -> Option<ScaleType> {
    match results {
        Float::Bf16 => Some(ScaleType::Bf16),
        Float::F16 => Some(ScaleType::F16),
        _ => None,
    }
}

/// Returns the candidates that explain the dump's values of a linear layer or of experts, and are much nearer to
/// them than a product without integers. `None` if another operation computed the values.
pub fn products_that_explain(
    compared: &ResultPair,
    among: &[IntegerProducts],
) -> Option<Vec<IntegerProducts>> {
    let [origin] = compared.traced.origins() else { return None };
    let node = node_of(origin)?;
    let linear = node.operation::<Linear>();
    let of_experts = || Some(node.operation::<ExpertProducts>()?.w.first()?.cols);
    let width = linear.map(|linear| linear.w.cols).or_else(of_experts)?;
    let mut wanted = compared.wanted(0..compared.sides[0].rows(), false);
    wanted.truncate(MANY);
    let explains = |products: &&IntegerProducts, values: &[usize]| {
        exacts_explain(compared, values, &node.stage.at(&products.profile(node.profile), values))
    };
    let distance = |profile: &Profile| {
        let exacts = node.stage.at(profile, &wanted);
        let errors =
            wanted.iter().zip(exacts).map(|(&flat, exact)| compared.sides[0].get(flat) - exact.value);
        errors.map(|error| error * error).sum::<f64>().sqrt()
    };
    let plain = LazyCell::new(|| distance(&node.profile));
    let is_near = |products: &&IntegerProducts| NEARER * distance(&products.profile(node.profile)) <= *plain;
    // A group as long as the row is the same as one group per token.
    let divides = |group: CodeGroup| !matches!(group, CodeGroup::Values(len) if len >= width);
    let has_row_scales = LazyCell::new(|| linear.is_none_or(Linear::has_row_scales));
    let applies = |products: &IntegerProducts| {
        divides(products.codes.group) && (products.row_scales == RowScales::Decoded || *has_row_scales)
    };
    let few = &wanted[..wanted.len().min(FEW)];
    let fitting = among
        .iter()
        .filter(|products| applies(products))
        .filter(|products| explains(products, few) && explains(products, &wanted))
        .filter(is_near);
    Some(fitting.copied().collect())
}
