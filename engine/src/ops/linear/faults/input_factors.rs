//! Faults in the factors of a quantised matrix's inputs (`pre_quant_scale` of Model Optimizer): factors that are
//! missing, inverted, or applied twice.

use crate::change::outer_operations::made_by;
use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::gating::exact::GatedProduct;
use crate::ops::linear::exact::short_type;
use crate::ops::linear::faults::{IN_LAYERS, input, input_scales, multiplied, own};
use crate::quant::ScaleType;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::PreQuantScale,
    at: IN_LAYERS,
    takes: "none|inverse|reciprocal|twice|none:codes|none:short|none:values",
    compute: |at, value| changed(at, value.as_word()?),
    usual: Some(|at| words(at).into_iter().map(ChangeValue::Word).collect()),
    ..CatalogueEntry::PLAIN
}];

/// Suffixes of values of `--suppose`, for engines that also quantise activations by the stored scale. The second
/// string is the suffix of the same types in [`input_scales`]; `None` selects its default.
const SUFFIXES: [(&str, Option<&str>); 3] =
    [(":codes", None), (":short", Some(":short")), (":values", Some(":values"))];

/// Returns the values of `--suppose` to try for a product whose inputs have factors. Empty for other products.
fn words(at: &SiteContext) -> Vec<String> {
    if scaled_input(at).is_none() {
        return Vec::new();
    }
    let is_short = short_type(at.n.profile().results).is_some();
    let words: Vec<&str> =
        ["none", "inverse", "twice"].into_iter().chain(is_short.then_some("reciprocal")).collect();
    // With wrong factors, xcheck may not have noticed that the engine quantises activations.
    let is_open = at.n.profile().activation_codes.is_none()
        && own(at).is_some_and(|product| product.w.input_scale().is_some());
    let suffixes: &[_] = match (is_open, is_short) {
        (true, true) => &SUFFIXES,
        (true, false) => &SUFFIXES[..1],
        (false, _) => &[],
    };
    let suffixes = [""].into_iter().chain(suffixes.iter().map(|(suffix, _)| *suffix));
    suffixes.flat_map(|suffix| words.iter().map(move |word| format!("{word}{suffix}"))).collect()
}

/// Returns the input of a product before it is multiplied by factors, `[T, inputs]`, and the factors. `None` for a
/// product without factors.
fn scaled_input(at: &SiteContext) -> Option<(Tensor, Vec<f32>)> {
    // Gemma 4's router also multiplies its input by factors. These are not a `pre_quant_scale`.
    let node = made_by(input(at).filter(|_| at.site.point != Point::RouterLogits)?)?;
    let product = node.operation::<GatedProduct>().filter(|product| product.has_factors())?;
    Some((product.x.clone(), product.projected.row(0).to_vec()))
}

/// Computes the product with wrong factors of its inputs.
fn changed(at: &SiteContext, value: &str) -> Option<Tensor> {
    let (x, factors) = scaled_input(at)?;
    let with = |(suffix, types): (&'static str, _)| Some((value.strip_suffix(suffix)?, Some(types)));
    let (word, types) = SUFFIXES.into_iter().find_map(with).unwrap_or((value, None));
    let inverse =
        |short: ScaleType| factors.iter().map(|factor| short.round(1.0 / factor)).collect::<Vec<_>>();
    let x = match word {
        "none" => x,
        "inverse" => at.n.column_scaled(&x, &inverse(ScaleType::F32)),
        "reciprocal" => at.n.column_scaled(&x, &inverse(short_type(at.n.profile().results)?)),
        "twice" => at.n.column_scaled(input(at)?, &factors),
        _ => return None,
    };
    let product = own(at)?;
    match types {
        None => multiplied(at, &x, &product),
        Some(types) => input_scales::multiplied_by_stored(at, &x, &product, types),
    }
}
