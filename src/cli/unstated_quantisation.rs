//! Quantised activations that a dump does not state.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::checkpoint::Point;
use crate::cli::numerics::ACTIVATION_CODES;
use crate::cli::unstated_properties::holds_results_alone;
use crate::dump::{Dump, Producer};
use crate::error::{Error, Result};
use crate::exact::Float;
use crate::model::Model;
use crate::ops::linear::exact::IntegerProducts;
use crate::quant::{ActivationCodeType, ActivationCodes, CodeGroup};
use crate::weight::InputCodes;

/// Returns true if a dump records no product except logits, and does not state its arithmetic.
pub(super) fn says_nothing_of_products(dump: &Dump) -> bool {
    let producer = &dump.manifest.producer;
    let says = producer.stated_dtype().or(producer.setting("numerics")).is_some();
    let holds_product = dump.sites().any(|site| site.point == Point::FinalNorm);
    !says && producer.rounding.is_none() && holds_results_alone(dump) && !holds_product
}

/// Returns the products with quantised activations that the model's file states; `None` if it states none, or the
/// producer states other codes.
pub(super) fn stated_products(
    model: &dyn Model,
    producer: &Producer,
    results: Float,
) -> Option<Vec<IntegerProducts>> {
    if producer.rounding.as_ref().is_some_and(|rounding| rounding.contains_key(ACTIVATION_CODES)) {
        return None;
    }
    IntegerProducts::stored(results, model.matrices().iter().map(|(_, matrix)| *matrix))
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

/// Returns the codes of activations that a producer states.
fn stated_codes(producer: &Producer) -> Option<&Value> {
    producer.rounding.as_ref()?.get(ACTIVATION_CODES).filter(|codes| !codes.is_null())
}

/// Returns the producer as if it quantised no activations; `None` if it states no codes that the model's file
/// determines.
pub(super) fn without_file_codes(producer: &Producer) -> Option<Producer> {
    let codes: ActivationCodes = serde_json::from_value(stated_codes(producer)?.clone()).ok()?;
    let mut rounding = producer.rounding.clone().filter(|_| codes.are_stored())?;
    rounding.remove(ACTIVATION_CODES);
    Some(Producer { rounding: Some(rounding), ..producer.clone() })
}

/// Returns the reason why a dump cannot show the codes of activations, because its taps are equally near to results
/// without quantised activations.
pub(super) fn about_unrecorded_codes(taps: &BTreeSet<Point>) -> String {
    let names: Vec<String> = taps.iter().map(ToString::to_string).collect();
    format!(
        "{}: the codes of unrecorded activations are so uncertain that the error bounds explain almost any value; record \
         the inputs of products with quantised activations, such as attn_norm, attn_context, ffn_norm and ffn_act, and \
         the products",
        names.join(", ")
    )
}

/// Returns a note on unquantised activations, if the model's file states codes for them.
pub(super) fn about_unquantised_activations(model: &dyn Model, producer: &Producer) -> Option<String> {
    let states_codes = || model.matrices().iter().any(|(_, matrix)| matrix.input_scale().is_some());
    let note = "the values are judged as products of unquantised activations, although the model's file states how to \
                quantise them";
    (stated_codes(producer).is_none() && states_codes()).then(|| note.to_owned())
}

/// Returns a note on the integer products that the values show.
pub(super) fn about_integers(products: &IntegerProducts) -> String {
    let codes = &products.codes;
    let group = match codes.group {
        CodeGroup::Values(len) => format!("{len} values"),
        CodeGroup::Token => "each token".to_owned(),
        CodeGroup::Pass => "each pass".to_owned(),
        CodeGroup::Matrix if codes.codes == ActivationCodeType::F4E2m1 || codes.scale.is_power() => {
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

/// Checks that the model's file states scales that are powers of two, if the producer states such scales for
/// `"matrix"`.
///
/// # Errors
/// If the file states only scales of other types.
pub(super) fn check_powers(model: &dyn Model, producer: &Producer) -> Result<()> {
    let codes = stated_codes(producer);
    let codes = codes.and_then(|codes| serde_json::from_value::<ActivationCodes>(codes.clone()).ok());
    let inputs: Vec<_> =
        model.matrices().iter().filter_map(|(_, matrix)| Some(matrix.input_scale()?.codes)).collect();
    let have_powers = |codes: &InputCodes| matches!(codes, InputCodes::Mxfp4 | InputCodes::Mxfp8);
    let is_wrong = codes.is_some_and(|codes| codes.are_stored() && codes.scale.is_power())
        && !inputs.is_empty()
        && !inputs.iter().any(have_powers);
    match is_wrong {
        true => Err(Error::Usage(format!(
            "producer.rounding: {ACTIVATION_CODES}: scale is a power of two, but the model's file states other scales; \
             expected \"f32\", \"f16\" or \"bf16\""
        ))),
        false => Ok(()),
    }
}
