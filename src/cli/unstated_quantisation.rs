//! Quantised activations that a dump does not state.

use crate::checkpoint::{Point, Site};
use crate::cli::numerics::ACTIVATION_CODES;
use crate::cli::unstated_properties::holds_results_alone;
use crate::dump::{Dump, Producer};
use crate::exact::Float;
use crate::model::Model;
use crate::ops::linear::exact::IntegerProducts;
use crate::quant::{ActivationCodeType, ActivationCodes, CodeGroup};

/// Returns true if a dump records no product except logits, and does not state its arithmetic.
pub(super) fn says_nothing_of_products(dump: &Dump) -> bool {
    let producer = &dump.manifest.producer;
    let says = producer.stated_dtype().or(producer.setting("numerics")).is_some();
    let holds_product = dump.sites().any(|site| site.point == Point::FinalNorm);
    !says && producer.rounding.is_none() && holds_results_alone(dump) && !holds_product
}

/// Returns the ways to multiply codes of activations that the model's file states; `None` if it states none, or the dump
/// records a product in a layer.
pub(super) fn stated_products(
    dump: &Dump,
    model: &dyn Model,
    results: Float,
) -> Option<Vec<IntegerProducts>> {
    use Point::{AttnOut, FfnGate, FfnOut, FfnUp, K, Q, V};
    let is_product = |site: Site| matches!(site.point, Q | K | V | AttnOut | FfnGate | FfnUp | FfnOut);
    if dump.sites().any(is_product) {
        return None;
    }
    let input = model.matrices().into_iter().find_map(|(_, matrix)| matrix.input_scale())?;
    Some(IntegerProducts::stored(results, &input))
}

/// Returns the integer products of common engines, each with and without the model's head: ONNX Runtime's
/// MatMulNBits, OpenVINO's groups of 128, torchao's per-token scales, and ONNX Runtime's dynamic quantisation
/// of a pass.
pub(super) fn common_products(vocab_size: usize) -> Vec<IntegerProducts> {
    let groups = [
        (CodeGroup::Values(32), false),
        (CodeGroup::Token, false),
        (CodeGroup::Values(128), false),
        (CodeGroup::Token, true),
        (CodeGroup::Pass, true),
    ];
    let of = |(group, asymmetric)| {
        [0, vocab_size].map(|whole_for| {
            let codes = ActivationCodes { group, asymmetric, whole_for, ..ActivationCodes::default() };
            IntegerProducts::of_decoded(codes)
        })
    };
    groups.into_iter().flat_map(of).collect()
}

/// Returns the producer as if it had stated these products; `None` if they cannot be stated.
pub(super) fn with_integers(producer: &Producer, products: IntegerProducts) -> Option<Producer> {
    let mut rounding = producer.rounding.clone().unwrap_or_default();
    rounding.insert(ACTIVATION_CODES.to_owned(), serde_json::to_value(products.codes).ok()?);
    rounding.insert("row_scales".to_owned(), serde_json::to_value(products.row_scales).ok()?);
    if products.has_whole_weights {
        rounding.insert("weights".to_owned(), "f32".into());
    }
    Some(Producer { rounding: Some(rounding), ..producer.clone() })
}

/// Returns a note on unquantised activations, if the model's file states codes for them.
pub(super) fn about_whole_activations(model: &dyn Model, producer: &Producer) -> Option<String> {
    let has_codes =
        producer.rounding.as_ref().is_some_and(|rounding| rounding.contains_key(ACTIVATION_CODES));
    let states_codes = || model.matrices().iter().any(|(_, matrix)| matrix.input_scale().is_some());
    let note = "the values are judged as products of unquantised activations, although the model's file states how to \
                quantise them";
    (!has_codes && states_codes()).then(|| note.to_owned())
}

/// Returns a note on the integer products that the values show.
pub(super) fn about_integers(products: &IntegerProducts) -> String {
    let codes = &products.codes;
    let group = match codes.group {
        CodeGroup::Values(len) => format!("{len} values"),
        CodeGroup::Token => "each token".to_owned(),
        CodeGroup::Pass => "each pass".to_owned(),
        CodeGroup::Matrix if codes.codes == ActivationCodeType::F4E2m1 => {
            "each group of values that the file's format defines".to_owned()
        }
        CodeGroup::Matrix => "each matrix, stored in the file".to_owned(),
    };
    let head = if codes.whole_for > 0 { ", except in the head of the model" } else { "" };
    let kind = match codes.codes {
        ActivationCodeType::Int8 => "8-bit integers",
        ActivationCodeType::F8E4m3 => "8-bit floats",
        ActivationCodeType::F4E2m1 => "4-bit floats",
    };
    let head = match codes.outliers {
        0.0 => head.to_owned(),
        outliers => format!("{head}, except in columns with a value of {outliers} or more"),
    };
    let weights = if products.has_whole_weights { ", \"weights\": \"f32\"" } else { "" };
    let stated = serde_json::to_string(codes).unwrap_or_default();
    format!(
        "the values show an engine that rounds activations to {kind} before products with weights, \
         with one scale for {group}{head}; state it in producer.rounding: \"{ACTIVATION_CODES}\": {stated}{weights}"
    )
}
