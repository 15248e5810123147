//! Faults in the scales of activation codes: the scale is not applied, or is that of another matrix or of other
//! groups of values.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, LinearParameters, SiteContext};
use crate::checkpoint::Point;
use crate::exact::Profile;
use crate::ops::linear::exact::{Linear, short_type};
use crate::ops::linear::faults::{PRODUCTS, input, neighbours, own};
use crate::quant::{ActivationCodes, CodeGroup, ScaleType};
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;
use crate::weight::{InputCodes, InputScale, Matrix};

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::InputScale,
    at: PRODUCTS,
    takes: "unit|inverse|no-zero|unrounded|token|pass|values:128|of:ffn_out|layer:3|token:short|token:values|token:floor|token:ceil",
    compute: |at, value| changed(at, value.as_word()?),
    usual: Some(|at| words(at).into_iter().map(ChangeValue::Word).collect()),
    ..CatalogueEntry::PLAIN
}];

/// Suffixes of values of `--suppose`. `:short`: quotients and decoded values are rounded to the 16-bit type of the
/// engine's results; `:values`: only decoded values are rounded; `:floor` and `:ceil`: powers of two are rounded
/// down or up.
const SUFFIXES: [&str; 4] = [":short", ":values", ":floor", ":ceil"];

/// Suffixes of `--suppose` that name types.
const TYPES: [&str; 2] = [":short", ":values"];

/// Returns the values of `--suppose` that apply to a product with a stored scale.
fn words(at: &SiteContext) -> Vec<String> {
    if own(at).is_some_and(|product| product.w.outliers().is_some()) {
        return vec!["token".to_owned()];
    }
    let scale = |product: LinearParameters| product.w.input_scale();
    let Some(stored) = own(at).and_then(scale) else { return Vec::new() };
    let differs = |point: Point, layer| {
        let other = at.operations.product(point, layer).and_then(scale);
        other.is_some_and(|other| other.codes == stored.codes && other != stored)
    };
    let siblings = PRODUCTS.iter().filter(|&&point| differs(point, at.site.layer));
    let layers = neighbours(at).filter(|&layer| differs(at.site.point, Some(layer)));
    let no_zero = Some("no-zero").filter(|_| stored.zero != 0.0);
    let fixed = fixed_words(&stored).iter().copied().chain(no_zero).map(str::to_owned);
    let of = siblings.map(|point| format!("of:{point}"));
    let all: Vec<String> = fixed.chain(of).chain(layers.map(|layer| format!("layer:{layer}"))).collect();
    // The arithmetic of the run states the type of quotients, if it quantises activations.
    let is_open = at.n.profile().activation_codes.is_none() && short_type(at.n.profile().results).is_some();
    let applies = |word: &str, suffix: &str| match stored.codes.has_powers() && word != "unrounded" {
        true => !TYPES.contains(&suffix),
        false => TYPES.contains(&suffix) && is_open,
    };
    let with = |suffix: &str| {
        let words = all.iter().filter(|word| applies(word, suffix));
        words.map(|word| format!("{word}{suffix}")).collect::<Vec<_>>()
    };
    let more: Vec<String> = SUFFIXES.into_iter().flat_map(with).collect();
    all.into_iter().chain(more).collect()
}

/// Returns the values of `--suppose` that apply to every matrix with this format of codes.
fn fixed_words(stored: &InputScale) -> &'static [&'static str] {
    match stored.codes {
        InputCodes::Nvfp4 => &["unit", "inverse", "unrounded", "values:32", "token", "pass"],
        InputCodes::Mxfp4 | InputCodes::Mxfp8 => &["unrounded", "values:16", "token", "pass"],
        InputCodes::Int8Groups | InputCodes::Float8Groups => &["token", "pass", "values:128"],
        _ => &["unit", "inverse", "token", "pass", "values:128"],
    }
}

/// Computes the product with other scales of the activations' codes.
fn changed(at: &SiteContext, value: &str) -> Option<Tensor> {
    let (x, product) = (input(at)?, own(at)?);
    let of_outliers =
        product.w.outliers().map(|_| InputScale { codes: InputCodes::Int8, number: 1.0, zero: 0.0 });
    let stored = product.w.input_scale().or(of_outliers)?;
    let with = |suffix| Some((value.strip_suffix(suffix)?, Some(suffix)));
    let (word, suffix) = SUFFIXES.into_iter().find_map(with).unwrap_or((value, None));
    let codes = codes(at, &stored, suffix)?;
    let of = |point: Point, layer| at.operations.product(point, layer)?.w.input_scale();
    let with_number = |number: f32| Some((InputScale { number, ..stored }, None));
    let other = |scale: InputScale| Some((scale, None));
    let grouped = |group: CodeGroup| Some((stored, Some(group)));
    let (scale, group) = match word.split_once(':') {
        Some(("of", point)) => other(of(point.parse().ok()?, at.site.layer)?),
        Some(("layer", layer)) => other(of(at.site.point, Some(layer.parse().ok()?))?),
        Some(("values", len)) => grouped(CodeGroup::Values(len.parse().ok().filter(|&len| len > 0)?)),
        Some(_) => None,
        None => match word {
            "unit" => with_number(1.0),
            "no-zero" => other(InputScale { zero: 0.0, ..stored }),
            "inverse" => with_number(stored.number.recip()),
            "unrounded" => other(stored),
            "token" => grouped(CodeGroup::Token),
            "pass" => grouped(CodeGroup::Pass),
            _ => None,
        },
    }?;
    let codes = codes.with_scale(&scale);
    let codes = ActivationCodes { group: group.unwrap_or(codes.group), ..codes };
    let codes = if word == "unrounded" { codes.without_stored_scales() } else { codes };
    Some(multiplied(at, x, &product, scale, codes))
}

/// Returns the activation codes of the run's arithmetic, or those of the stored scale. Powers of two are rounded as
/// the suffix states.
fn codes(at: &SiteContext, stored: &InputScale, suffix: Option<&str>) -> Option<ActivationCodes> {
    let known = at.n.profile().activation_codes.filter(|codes| codes.group == CodeGroup::Matrix);
    let codes = known.filter(|_| !stored.codes.has_powers()).unwrap_or(ActivationCodes::of_matrix(stored));
    let with = |scale, quotients| Some(ActivationCodes { scale, quotients, ..codes });
    match suffix {
        Some(":short") => with(short_type(at.n.profile().results)?, short_type(at.n.profile().results)?),
        Some(":values") => Some(ActivationCodes { values: short_type(at.n.profile().results), ..codes }),
        Some(":floor") => with(ScaleType::PowerBelow, codes.quotients),
        Some(_) => with(ScaleType::PowerAbove, codes.quotients),
        None => Some(codes),
    }
}

/// Computes the product of activations that are quantised by the matrix's stored scale. `suffix` selects the types in
/// which they are quantised.
pub(super) fn multiplied_by_stored(
    at: &SiteContext,
    x: &Tensor,
    product: &LinearParameters,
    suffix: Option<&str>,
) -> Option<Tensor> {
    let stored = product.w.input_scale()?;
    let codes = codes(at, &stored, suffix)?.with_scale(&stored);
    Some(multiplied(at, x, product, stored, codes))
}

/// Computes the product of activations with these codes.
fn multiplied(
    at: &SiteContext,
    x: &Tensor,
    product: &LinearParameters,
    scale: InputScale,
    codes: ActivationCodes,
) -> Tensor {
    let LinearParameters { w, bias, .. } = product;
    let mut data = x.data().to_vec();
    match codes.group {
        CodeGroup::Matrix => codes.round_stored(&mut data, &scale),
        _ => codes.round(&mut data, x.row_len()),
    }
    // Without a stored scale, the numerics leave the activations as they are.
    let plain: Matrix = w.clone().with_input_scale(None).with_outliers(None);
    let rounded = Tensor::new(x.shape(), data);
    let numerics = at.n.numerics();
    let result = numerics.linear_of_pass(&rounded, &plain, bias.as_deref(), at.positions.len());
    let coded = |profile| Profile { activation_codes: Some(codes), ..profile };
    let n = TracedNumerics::new(numerics, coded(at.n.profile())).rounding_by(coded(Profile::of(numerics)));
    let w = w.clone().with_input_scale(Some(scale));
    n.by(result, Linear { x: x.clone(), w, bias: bias.clone() })
}
