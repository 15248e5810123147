//! Stored scales of the codes of activations: not applied, of another matrix, or replaced by scales of the values.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, LinearParameters, SiteContext};
use crate::checkpoint::Point;
use crate::exact::{Float, Profile};
use crate::ops::linear::exact::Linear;
use crate::ops::linear::faults::{PRODUCTS, input, neighbours, own};
use crate::quant::{ActivationCodes, CodeGroup, ScaleType};
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;
use crate::weight::{DType, InputScale, Matrix};

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::InputScale,
    at: PRODUCTS,
    takes: "unit|inverse|no-zero|token|pass|values:128|of:ffn_out|layer:3|token:short",
    compute: |at, value| changed(at, value.as_word()?),
    usual: Some(|at| words(at).into_iter().map(ChangeValue::Word).collect()),
    ..CatalogueEntry::PLAIN
}];

/// Suffix of values for quotients in the 16-bit type of the engine's results.
const SHORT: &str = ":short";

/// Returns the values that apply to a product with a stored scale.
fn words(at: &SiteContext) -> Vec<String> {
    if own(at).is_some_and(|product| product.w.outliers().is_some()) {
        return vec!["token".to_owned()];
    }
    let scale = |product: LinearParameters| product.w.input_scale();
    let Some(stored) = own(at).and_then(scale) else { return Vec::new() };
    let differs = |point: Point, layer| {
        at.operations.product(point, layer).and_then(scale).is_some_and(|other| other != stored)
    };
    let siblings = PRODUCTS.iter().filter(|&&point| differs(point, at.site.layer));
    let layers = neighbours(at).filter(|&layer| differs(at.site.point, Some(layer)));
    let no_zero = Some("no-zero").filter(|_| stored.zero != 0.0);
    let fixed = ["unit", "inverse", "token", "pass", "values:128"].into_iter().chain(no_zero);
    let fixed = fixed.map(str::to_owned);
    let of = siblings.map(|point| format!("of:{point}"));
    let all: Vec<String> = fixed.chain(of).chain(layers.map(|layer| format!("layer:{layer}"))).collect();
    // The arithmetic of the run states the type of quotients, if it quantises activations.
    let is_open = at.n.profile().activation_codes.is_none() && short(at.n.profile().results).is_some();
    let in_short = all.iter().filter(|_| is_open).map(|word| format!("{word}{SHORT}")).collect::<Vec<_>>();
    all.into_iter().chain(in_short).collect()
}

fn short(results: Float) -> Option<ScaleType> {
    match results {
        Float::Bf16 => Some(ScaleType::Bf16),
        Float::F16 => Some(ScaleType::F16),
        _ => None,
    }
}

/// Computes the product with other scales of the activations' codes.
fn changed(at: &SiteContext, value: &str) -> Option<Tensor> {
    let (x, product) = (input(at)?, own(at)?);
    let of_outliers = product.w.outliers().map(|_| InputScale { codes: DType::I8, step: 1.0, zero: 0.0 });
    let stored = product.w.input_scale().or(of_outliers)?;
    let (word, is_short) = value.strip_suffix(SHORT).map_or((value, false), |word| (word, true));
    let codes = codes(at, &stored, is_short)?;
    let of = |point: Point, layer| at.operations.product(point, layer)?.w.input_scale();
    let with_step = |step: f32| InputScale { step, ..stored };
    let (group, scale) = match word.split_once(':') {
        Some(("of", point)) => (CodeGroup::Matrix, of(point.parse().ok()?, at.site.layer)?),
        Some(("layer", layer)) => (CodeGroup::Matrix, of(at.site.point, Some(layer.parse().ok()?))?),
        Some(("values", len)) => (CodeGroup::Values(len.parse().ok().filter(|&len| len > 0)?), stored),
        Some(_) => return None,
        None => match word {
            "unit" => (CodeGroup::Matrix, with_step(1.0)),
            "no-zero" => (CodeGroup::Matrix, InputScale { zero: 0.0, ..stored }),
            "inverse" => (CodeGroup::Matrix, with_step(stored.step.recip())),
            "token" => (CodeGroup::Token, stored),
            "pass" => (CodeGroup::Pass, stored),
            _ => return None,
        },
    };
    Some(multiplied(at, x, &product, scale, ActivationCodes { group, ..codes }))
}

/// Returns the codes of the run's arithmetic, or those of the stored scale.
fn codes(at: &SiteContext, stored: &InputScale, is_short: bool) -> Option<ActivationCodes> {
    let known = at.n.profile().activation_codes.filter(|codes| codes.group == CodeGroup::Matrix);
    let codes = known.unwrap_or(ActivationCodes::of_matrix(stored));
    match is_short {
        true => short(at.n.profile().results).map(|short| ActivationCodes {
            scale: short,
            quotients: short,
            ..codes
        }),
        false => Some(codes),
    }
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
