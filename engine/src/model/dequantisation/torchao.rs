//! torchao: tensors of weight-only int8, of int8 with quantised activations, of 8-bit floats, and of few-bit integers in
//! bytes, as transformers saves them in safetensors files.

use crate::error::Result;
use crate::model::dequantisation::activations::ActivationScheme;
use crate::model::dequantisation::affine::ScaleGroup;
use crate::model::dequantisation::dense_weights::{DenseTensors, DenseWeights};
use crate::model::dequantisation::module_filter::{ModuleFilter, UNCONVERTED};
use crate::model::dequantisation::{Dequantisation, one_group};
use crate::model::json::Config;

const TENSORS: DenseTensors = DenseTensors {
    scale: "_weight_scale",
    weight: "_weight_qdata",
    zero_point: "_weight_zero_point",
    all: &["_weight_scale", "_weight_qdata", "_weight_zero_point"],
};

/// Reads the settings of torchao, which has one format for all modules.
///
/// # Errors
/// If a key asks for something that is not supported.
pub(super) fn read(settings: &Config) -> Result<Dequantisation> {
    settings.only_keys(&[
        "quant_method",
        "quant_type",
        "quant_type_kwargs",
        UNCONVERTED,
        "include_input_output_embeddings",
        "untie_embedding_weights",
    ])?;
    let expected = "an object with \"default\" (save the model again with torchao 0.15 or newer)";
    let kinds = match settings.get("quant_type") {
        Some(kind) if !kind.is_object() => return Err(settings.bad_key("quant_type", kind, expected)),
        _ => object_with(settings, "quant_type", "default")?,
    };
    kinds.only_keys(&["default"])?;
    let Some(kind) = kinds.object("default")? else {
        return Err(kinds.bad_key("default", "absent", expected));
    };
    kind.only("_version", &[2.into()], "2 (older versions are not supported)")?;
    let data = object_with(&kind, "_data", "granularity")?;
    let (name, activations) = match kind.require_str("_type")? {
        "Int8WeightOnlyConfig" => ("int8", None),
        "Float8WeightOnlyConfig" => ("FP8", None),
        "Int8DynamicActivationInt8WeightConfig" => ("int8 with quantised activations", Some(dynamic(&data)?)),
        "IntxWeightOnlyConfig" => {
            let unpacked = object_with(&data, "intx_packing_format", "_data")?;
            unpacked.only("_data", &["UNPACKED_TO_INT8".into()], "\"UNPACKED_TO_INT8\"")?;
            ("integers in bytes", None)
        }
        other => {
            let known = "\"Int8WeightOnlyConfig\", \"Int8DynamicActivationInt8WeightConfig\", \
                         \"Float8WeightOnlyConfig\" or \"IntxWeightOnlyConfig\" (other types of torchao are packed for \
                         kernels of a machine)";
            return Err(kind.bad_key("_type", format!("{other:?}"), known));
        }
    };
    let group = granularity(&data)?;
    let mut filter = ModuleFilter::all(UNCONVERTED);
    filter.exclude_listed(settings, UNCONVERTED)?;
    let format = DenseWeights { tensors: TENSORS, group, has_exponents: false };
    Ok(one_group(format!("torchao, {name}, {}", group.name()), format, activations, filter))
}

/// Returns the matrix's part that shares a scale.
fn granularity(data: &Config) -> Result<ScaleGroup> {
    let place = object_with(data, "granularity", "_type")?;
    match place.require_str("_type")? {
        "PerTensor" => Ok(ScaleGroup::Tensor),
        "PerRow" => {
            object_with(&place, "_data", "dim")?.only("dim", &[(-1).into(), 1.into()], "-1")?;
            Ok(ScaleGroup::Channel)
        }
        "PerGroup" => {
            let group = object_with(&place, "_data", "group_size")?;
            match group.require_usize("group_size")? {
                0 => Err(group.bad_key("group_size", 0, "1 or more")),
                inputs => Ok(ScaleGroup::Inputs(inputs)),
            }
        }
        other => {
            Err(place.bad_key("_type", format!("{other:?}"), "\"PerTensor\", \"PerRow\" or \"PerGroup\""))
        }
    }
}

/// Returns the quantisation of activations: one scale for each token.
fn dynamic(data: &Config) -> Result<ActivationScheme> {
    let mapping = object_with(data, "act_mapping_type", "_data")?;
    let place = object_with(data, "granularity", "_type")?;
    Ok(match (mapping.require_str("_data")?, place.require_str("_type")?) {
        ("SYMMETRIC", "PerRow") => ActivationScheme::Dynamic(None),
        ("SYMMETRIC", other) => ActivationScheme::unsupported(&place, "_type", format!("{other:?}")),
        (other, _) => ActivationScheme::unsupported(&mapping, "_data", format!("{other:?}")),
    })
}

/// Returns an object under a key.
///
/// # Errors
/// If it is missing; `wanted` is a key that it needs.
fn object_with<'f>(settings: &Config<'f>, key: &str, wanted: &str) -> Result<Config<'f>> {
    let expected = format!("an object with {wanted:?}");
    settings.object(key)?.ok_or_else(|| settings.bad_key(key, "absent", expected))
}
