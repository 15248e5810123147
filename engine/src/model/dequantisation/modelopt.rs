//! NVIDIA Model Optimizer (`modelopt`): its `quantization_config`, or `hf_quant_config.json` beside `config.json`.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::error::Result;
use crate::model::dequantisation::activations::{ActivationScheme, state_all};
use crate::model::dequantisation::affine::ScaleGroup;
use crate::model::dequantisation::cache_scales::{CacheKind, cache_kind};
use crate::model::dequantisation::dense_weights::{DenseTensors, DenseWeights};
use crate::model::dequantisation::float4_weights::{Float4Tensors, Float4Weights, GlobalScale};
use crate::model::dequantisation::input_factors::INPUT_FACTORS;
use crate::model::dequantisation::module_filter::{ModuleFilter, ModulePattern};
use crate::model::dequantisation::paired_rows::PairedRows;
use crate::model::dequantisation::{Dequantisation, FormatGroup, WeightFormat};
use crate::model::json::Config;
use crate::weight::{DType, InputCodes, InputScale};

/// File of Model Optimizer's settings. Its content is read under this key of `config.json`.
pub(super) const FILE: &str = "hf_quant_config.json";

/// Key of the settings in that file.
const NESTED: &str = "quantization";

/// Key of the format.
const ALGORITHM: &str = "quant_algo";

const INPUT_SCALE: &str = "input_scale";

const DENSE: DenseTensors = DenseTensors {
    scale: "weight_scale",
    weight: "weight",
    zero_point: "weight_zero_point",
    all: &["weight_scale", "weight", INPUT_SCALE],
};

const FLOAT4: Float4Tensors =
    Float4Tensors { codes: "weight", all: &["weight_scale", "weight", "weight_scale_2", INPUT_SCALE] };

/// Keys of the settings of all modules.
const KEYS: &[&str] = &[
    "quant_method",
    "producer",
    ALGORITHM,
    "group_size",
    "config_groups",
    "ignore",
    "exclude_modules",
    "kv_cache_scheme",
    "kv_cache_quant_algo",
    "has_zero_point",
    INPUT_FACTORS,
    "quantized_layers",
];

/// Keys of the settings of one module.
const OWN_KEYS: &[&str] = &[ALGORITHM, "group_size", "has_zero_point", INPUT_FACTORS];

/// Reads the settings: `quantization_config`, or the content of `hf_quant_config.json`.
///
/// # Errors
/// If a key asks for something that is not supported.
pub(super) fn read(config: &Config, settings: &Config) -> Result<Dequantisation> {
    let place = place(settings)?;
    place.only_keys(KEYS)?;
    check_zero_point(&place)?;
    let may_have_float_cache = cache(&place)? != Some(CacheKind::Other);
    let dtype = match config.text_type()? {
        Some("bfloat16") => DType::BF16,
        Some("float16") => DType::F16,
        _ => DType::F32,
    };
    let key = excluded_key(&place)?;
    let mut filter = ModuleFilter { key_path: place.path_of(key), ..ModuleFilter::all(key) };
    for text in place.texts(key)? {
        filter.excluded.push((text.to_owned(), ModulePattern::glob(&place, key, text)?));
        // Older versions list parts of names.
        filter.maybe_excluded.push(text.to_owned());
    }
    let (algorithm, mut groups) = match algorithm(&place)?.as_str() {
        "MIXED_PRECISION" => {
            let layers = place.object("quantized_layers")?;
            let layers =
                layers.ok_or_else(|| place.bad_key("quantized_layers", "absent", "an object of modules"))?;
            let (groups, modules) = mixed_groups(&layers, dtype)?;
            filter.groups = modules.into_iter().map(|names| vec![ModulePattern::Names(names)]).collect();
            ("mixed precision".to_owned(), groups)
        }
        other => (other.to_owned(), vec![format_group(&place, dtype)?]),
    };
    state_all(&mut groups);
    state_input_factors(&mut groups, &place)?;
    let name = format!("Model Optimizer, {algorithm}");
    Ok(Dequantisation { name, groups, filter, may_have_float_cache, other_names: None })
}

/// Reads the settings of `hf_quant_config.json` beside `quantization_config` in `config.json`, which lacks some of its keys.
/// Engines read either of them.
///
/// # Errors
/// If they have other formats or caches, or exclude other modules; see [`read`].
pub(super) fn read_both(config: &Config, settings: &Config, file: &Config) -> Result<Dequantisation> {
    let method = settings.require_str("quant_method")?;
    if !method.starts_with("modelopt") {
        let found = format!("{method:?}, with {FILE}");
        let expected = format!("\"modelopt\"; remove {FILE} if it is of another model");
        return Err(settings.bad_key("quant_method", found, expected));
    }
    let expected = format!("the same as in quantization_config; remove {FILE} if it is of another model");
    let (stated, other) = (place(settings)?, place(file)?);
    if algorithm(&stated)? != algorithm(&other)? {
        return Err(other.bad_key(ALGORITHM, format!("{:?}", algorithm(&other)?), expected));
    }
    stated.only_keys(KEYS)?;
    check_zero_point(&stated)?;
    for key in ["group_size", "quantized_layers", INPUT_FACTORS] {
        if let (Some(one), Some(found)) = (stated.get(key), other.get(key))
            && one != found
        {
            return Err(other.bad_key(key, found, expected));
        }
    }
    // Older versions state the cache in this file alone.
    let found = cache(&other)?;
    if cache(&stated)?.is_some_and(|cache| found != Some(cache)) {
        let found = other.get("kv_cache_quant_algo").map_or("absent".to_owned(), ToString::to_string);
        return Err(other.bad_key("kv_cache_quant_algo", found, expected));
    }
    let (key, other_key) = (excluded_key(&stated)?, excluded_key(&other)?);
    let listed: BTreeSet<&str> = stated.texts(key)?.into_iter().collect();
    match listed.symmetric_difference(&other.texts(other_key)?.into_iter().collect()).next() {
        Some(text) => {
            let found = format!("with {text:?} in one of the two files");
            Err(other.bad_key(other_key, found, expected))
        }
        None => {
            let mut quantised = read(config, file)?;
            state_input_factors(&mut quantised.groups, &stated)?;
            Ok(quantised)
        }
    }
}

/// Returns the object with the format's keys.
fn place<'f>(settings: &Config<'f>) -> Result<Config<'f>> {
    match settings.object(NESTED)? {
        Some(nested) => {
            settings.only_keys(&["quant_method", "producer", NESTED])?;
            Ok(nested)
        }
        None => Ok(settings.clone()),
    }
}

fn algorithm(place: &Config) -> Result<String> {
    Ok(place.require_str(ALGORITHM)?.to_uppercase())
}

/// Returns the key of the unquantised modules. Two lists in one file are refused, since engines read either of them.
fn excluded_key(place: &Config) -> Result<&'static str> {
    match (place.get("ignore"), place.get("exclude_modules")) {
        (Some(_), Some(found)) => Err(place.bad_key("exclude_modules", found, "absent beside `ignore`")),
        (Some(_), None) => Ok("ignore"),
        _ => Ok("exclude_modules"),
    }
}

/// Returns the kind of the KV cache; `None` if the settings do not state one.
fn cache(place: &Config) -> Result<Option<CacheKind>> {
    place.only(
        "kv_cache_quant_algo",
        &["FP8".into()],
        "\"FP8\" (other quantised KV caches are not supported)",
    )?;
    match place.get("kv_cache_scheme") {
        Some(scheme) if !scheme.is_object() => {
            Err(place.bad_key("kv_cache_scheme", scheme, "an object with 8 bits (others are not supported)"))
        }
        _ => Ok(cache_kind(place)?.or(place.get("kv_cache_quant_algo").map(|_| CacheKind::StoredFloats))),
    }
}

/// Reads the formats of single modules. Returns each format with the modules that have it.
fn mixed_groups(layers: &Config, dtype: DType) -> Result<(Vec<FormatGroup>, Vec<HashSet<String>>)> {
    let (mut groups, mut modules) = (Vec::new(), Vec::<HashSet<String>>::new());
    let mut known = BTreeMap::new();
    for module in layers.keys() {
        let Some(own) = layers.object(module)? else { continue };
        own.only_keys(OWN_KEYS)?;
        check_zero_point(&own)?;
        let settings =
            (algorithm(&own)?, own.optional_usize("group_size")?, own.optional_bool(INPUT_FACTORS)?);
        let at = match known.get(&settings) {
            Some(&at) => at,
            None => {
                groups.push(format_group(&own, dtype)?);
                state_input_factors(&mut groups[modules.len()..], &own)?;
                modules.push(HashSet::new());
                known.insert(settings, groups.len() - 1);
                groups.len() - 1
            }
        };
        modules[at].insert(module.to_owned());
    }
    Ok((groups, modules))
}

/// Excludes factors of inputs, if the settings state that there are none.
fn state_input_factors(groups: &mut [FormatGroup], place: &Config) -> Result<()> {
    let may_have_them = place.optional_bool(INPUT_FACTORS)? != Some(false);
    groups.iter_mut().for_each(|group| group.may_have_input_factors &= may_have_them);
    Ok(())
}

fn check_zero_point(place: &Config) -> Result<()> {
    place.only("has_zero_point", &[false.into()], "false (zero points are not supported)")
}

/// Reads a format. `dtype` is the model's type.
fn format_group(place: &Config, dtype: DType) -> Result<FormatGroup> {
    let size = place.optional_usize("group_size")?.filter(|&size| size > 0);
    let dense = |group| dense(group, false);
    let fixed = |algorithm: &str, wanted: usize| match size {
        Some(size) if size != wanted => {
            Err(place.bad_key("group_size", size, format!("{wanted} for {algorithm}")))
        }
        _ => Ok(ScaleGroup::Inputs(wanted)),
    };
    let block = size.unwrap_or(128);
    let paired = |has_float8| -> Box<dyn WeightFormat> {
        Box::new(PairedRows { group: ScaleGroup::Inputs(block), dtype, has_float8 })
    };
    let nvfp4 = || ActivationScheme::Static {
        codes: InputCodes::Nvfp4,
        scale: INPUT_SCALE,
        is_inverse: true,
        is_symmetric: true,
    };
    let (format, activations) = match algorithm(place)?.as_str() {
        "FP8" => {
            (dense(ScaleGroup::Tensor), Some(ActivationScheme::symmetric(InputCodes::Float8, INPUT_SCALE)))
        }
        "FP8_PER_CHANNEL_PER_TOKEN" => (
            dense(ScaleGroup::Channel),
            Some(ActivationScheme::Dynamic(Some(InputScale::of_groups(InputCodes::Float8Groups, 0)))),
        ),
        "FP8_PB_WO" => (dense(ScaleGroup::Block([block, block])), None),
        "W8A16" => (dense(ScaleGroup::Channel), None),
        "W8A8_SQ_PER_CHANNEL" => {
            (dense(ScaleGroup::Channel), Some(ActivationScheme::symmetric(InputCodes::Int8, INPUT_SCALE)))
        }
        "MXFP8" => {
            (self::dense(fixed("MXFP8", 32)?, true), Some(ActivationScheme::powers(InputCodes::Mxfp8)))
        }
        "NVFP4" | "NVFP4_AWQ" => (float4(fixed("NVFP4", 16)?, true), Some(nvfp4())),
        "W4A16_NVFP4" => (float4(fixed("NVFP4", 16)?, true), None),
        "MXFP4" => (float4(fixed("MXFP4", 32)?, false), Some(ActivationScheme::powers(InputCodes::Mxfp4))),
        "W4A16_AWQ" => (paired(false), None),
        "W4A8_AWQ" => (paired(true), Some(ActivationScheme::symmetric(InputCodes::Float8, INPUT_SCALE))),
        other => {
            let known = "\"FP8\", \"FP8_PER_CHANNEL_PER_TOKEN\", \"FP8_PB_WO\", \"W8A16\", \"W8A8_SQ_PER_CHANNEL\", \
                         \"MXFP8\", \"NVFP4\", \"NVFP4_AWQ\", \"W4A16_NVFP4\", \"MXFP4\", \"W4A16_AWQ\", \"W4A8_AWQ\" or \
                         \"MIXED_PRECISION\"";
            return Err(place.bad_key(ALGORITHM, format!("{other:?}"), known));
        }
    };
    Ok(FormatGroup { format, activations, may_have_input_factors: true })
}

fn dense(group: ScaleGroup, has_exponents: bool) -> Box<dyn WeightFormat> {
    Box::new(DenseWeights { tensors: DENSE, group, has_exponents })
}

fn float4(group: ScaleGroup, is_nvfp4: bool) -> Box<dyn WeightFormat> {
    let global = is_nvfp4.then_some(GlobalScale::Multiplies("weight_scale_2"));
    Box::new(Float4Weights { group, tensors: FLOAT4, global })
}
