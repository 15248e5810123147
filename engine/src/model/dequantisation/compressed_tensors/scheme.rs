//! Format groups of compressed-tensors: `config_groups`, and the formats of their weights.

use serde_json::Value;

use crate::error::Result;
use crate::model::dequantisation::activations::{ActivationScheme, state_all};
use crate::model::dequantisation::affine::ScaleGroup;
use crate::model::dequantisation::cache_scales::{CacheKind, cache_kind};
use crate::model::dequantisation::compressed_tensors::packed_weights::PackedWeights;
use crate::model::dequantisation::compressed_tensors::with_inputs;
use crate::model::dequantisation::dense_weights::{DenseTensors, DenseWeights};
use crate::model::dequantisation::float4_weights::{Float4Tensors, Float4Weights, GlobalScale};
use crate::model::dequantisation::module_filter::{ModuleFilter, ModulePattern};
use crate::model::dequantisation::{Dequantisation, FormatGroup, WeightFormat};
use crate::model::json::Config;

const DENSE: DenseTensors = DenseTensors {
    scale: "weight_scale",
    weight: "weight",
    zero_point: "weight_zero_point",
    all: with_inputs!["weight_scale", "weight", "weight_zero_point"],
};

const FLOAT4: Float4Tensors = Float4Tensors {
    codes: "weight_packed",
    all: with_inputs!["weight_packed", "weight_scale", "weight_global_scale"],
};

/// Keys of `quantization_config`.
const KEYS: &[&str] = &[
    "quant_method",
    "config_groups",
    "format",
    "ignore",
    "quantization_status",
    "global_compression_ratio",
    "kv_cache_scheme",
    "sparsity_config",
    "transform_config",
    "moe_sparsity_config",
    "version",
    "run_compressed",
    "dequantize",
    "use_optimized_inference",
];

/// Keys of the settings of weights and activations.
const ARGUMENTS: &[&str] = &[
    "num_bits",
    "type",
    "symmetric",
    "group_size",
    "strategy",
    "block_structure",
    "dynamic",
    "actorder",
    "scale_dtype",
    "zp_dtype",
    "observer",
    "observer_kwargs",
];

/// Reads the configuration.
///
/// # Errors
/// If a key asks for something that is not supported.
pub(in crate::model::dequantisation) fn read(config: &Config) -> Result<Dequantisation> {
    config.only_keys(KEYS)?;
    let empty = Value::Object(serde_json::Map::new());
    let may_have_float_cache = cache_kind(config)? != Some(CacheKind::Other);
    config.only("transform_config", std::slice::from_ref(&empty), "absent (rotations are not supported)")?;
    config.only(
        "moe_sparsity_config",
        std::slice::from_ref(&empty),
        "absent (pruned experts are not supported)",
    )?;
    config.only("quantization_status", &["compressed".into()], "\"compressed\"")?;
    if let Some(sparsity) = config.object("sparsity_config")? {
        sparsity.only("format", &["dense".into()], "\"dense\" (sparse formats are not supported)")?;
    }
    let Some(all) = config.object("config_groups")? else {
        return Err(config.bad_key("config_groups", "absent", "an object of format groups"));
    };
    let mut filter = ModuleFilter { groups: Vec::new(), ..ModuleFilter::all("ignore") };
    for text in config.texts("ignore")? {
        let pattern = ModulePattern::compressed_tensors(config, "ignore", text)?;
        filter.excluded.push((text.to_owned(), pattern));
    }
    let (mut groups, mut names, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for key in all.keys() {
        let Some(group) = all.object(key)? else { continue };
        let patterns = group.texts("targets")?.into_iter();
        let patterns = patterns.map(|text| ModulePattern::compressed_tensors(&group, "targets", text));
        filter.groups.push(patterns.collect::<Result<_>>()?);
        let (format, name) = format_group(config, &group)?;
        groups.push(format);
        names.push(name);
        keys.push(key);
    }
    names.dedup();
    refuse_mixed(&all, &keys, &mut groups);
    Ok(Dequantisation {
        name: format!("compressed-tensors {}", names.join(", ")),
        groups,
        filter,
        may_have_float_cache,
        other_names: None,
    })
}

/// Marks scales of whole tensors that are computed from activations as unsupported, if another format group states
/// its codes.
fn refuse_mixed(all: &Config, keys: &[&str], groups: &mut [FormatGroup]) {
    let Some((stated, unknown)) = state_all(groups) else { return };
    let expected = "\"token\" or \"group\": the activations of another group have stored scales or scales of NVFP4, \
                    MXFP4 or MXFP8";
    for index in unknown {
        let found = format!("one scale for all tokens, with {}.input_activations", all.path_of(keys[stated]));
        let key = format!("{}.input_activations.strategy", keys[index]);
        groups[index].activations = Some(ActivationScheme::unsupported_for(all, &key, found, expected));
    }
}

/// Reads one format group and its name.
fn format_group(config: &Config, group: &Config) -> Result<(FormatGroup, String)> {
    group.only_keys(&["targets", "weights", "input_activations", "output_activations", "format"])?;
    group.only("output_activations", &[], "absent (quantised outputs are not supported)")?;
    let place = if group.get("format").is_some() { group } else { config };
    let format = place.require_str("format")?;
    let Some(weights) = group.object("weights")? else {
        return Err(group.bad_key("weights", "absent", "settings of quantised weights"));
    };
    let weights = WeightArguments::read(&weights)?;
    let decoder: Box<dyn WeightFormat> = match (format, weights.kind, weights.bits) {
        ("pack-quantized", "int", bits) => {
            Box::new(PackedWeights { bits, group: weights.group, is_symmetric: weights.is_symmetric })
        }
        ("int-quantized" | "naive-quantized", "int", 8)
        | ("float-quantized" | "naive-quantized", "float", 8) => {
            Box::new(DenseWeights { tensors: DENSE, group: weights.group, has_exponents: false })
        }
        ("mxfp8-quantized", "float", 8) => {
            Box::new(DenseWeights { tensors: DENSE, group: weights.group, has_exponents: true })
        }
        ("nvfp4-pack-quantized", "float", 4) => {
            let global = Some(GlobalScale::Divides("weight_global_scale"));
            Box::new(Float4Weights { group: weights.group, tensors: FLOAT4, global })
        }
        ("mxfp4-pack-quantized", "float", 4) => {
            Box::new(Float4Weights { group: weights.group, tensors: FLOAT4, global: None })
        }
        _ => {
            let found = format!("{format:?} with {} bits ({})", weights.bits, weights.kind);
            let expected = "pack-quantized (int), int-quantized (8 bits), float-quantized (8 bits), \
                            naive-quantized (8 bits), mxfp8-quantized, nvfp4-pack-quantized or \
                            mxfp4-pack-quantized";
            return Err(place.bad_key("format", found, expected));
        }
    };
    let name = format!("{format}, {} bits, {}", weights.bits, weights.group.name());
    let activations = match group.object("input_activations")? {
        Some(arguments) => {
            arguments.only_keys(ARGUMENTS)?;
            Some(ActivationScheme::compressed_tensors(&arguments)?)
        }
        None => None,
    };
    Ok((FormatGroup { format: decoder, activations, may_have_input_factors: false }, name))
}

/// Settings of quantised weights.
struct WeightArguments<'f> {
    bits: usize,
    /// "int" or "float".
    kind: &'f str,
    group: ScaleGroup,
    is_symmetric: bool,
}

impl<'f> WeightArguments<'f> {
    fn read(arguments: &Config<'f>) -> Result<Self> {
        arguments.only_keys(ARGUMENTS)?;
        arguments.only("dynamic", &[false.into()], "false (weights have stored scales)")?;
        let kind = arguments.optional_str("type")?.unwrap_or("int");
        let bits = arguments.optional_usize("num_bits")?.unwrap_or(8);
        if !(1..=8).contains(&bits) {
            return Err(arguments.bad_key("num_bits", bits, "1 to 8"));
        }
        let is_symmetric = arguments.optional_bool("symmetric")?.unwrap_or(true);
        if kind == "float" && !is_symmetric {
            return Err(arguments.bad_key("symmetric", false, "true for floats"));
        }
        Ok(Self { bits, kind, group: group(arguments)?, is_symmetric })
    }
}

/// Reads the part of a matrix that shares a scale.
fn group(arguments: &Config) -> Result<ScaleGroup> {
    let size = match arguments.get("group_size").and_then(Value::as_i64) {
        Some(-1) => None,
        _ => arguments.optional_usize("group_size")?,
    };
    if size == Some(0) {
        return Err(arguments.bad_key("group_size", 0, "1 or more, or -1"));
    }
    match (arguments.optional_str("strategy")?, size) {
        (Some("group" | "tensor_group") | None, Some(size)) => Ok(ScaleGroup::Inputs(size)),
        (Some("tensor"), _) => Ok(ScaleGroup::Tensor),
        (Some("channel"), _) => Ok(ScaleGroup::Channel),
        (None, None) => match arguments.get("group_size") {
            Some(_) => Ok(ScaleGroup::Channel),
            None => Ok(ScaleGroup::Tensor),
        },
        (Some("block"), _) => Ok(ScaleGroup::Block(arguments.pair("block_structure")?)),
        (Some(other), _) => {
            let expected =
                "\"tensor\", \"channel\", \"group\" or \"tensor_group\" with a group_size, or \"block\"";
            Err(arguments.bad_key("strategy", format!("{other:?}"), expected))
        }
    }
}
