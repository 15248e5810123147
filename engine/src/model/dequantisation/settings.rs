//! `quantization_config`: the method of a quantised checkpoint, and the settings of each method.

use serde_json::Value;

use crate::error::Result;
use crate::model::dequantisation::activations::ActivationScheme;
use crate::model::dequantisation::affine::ScaleGroup;
use crate::model::dequantisation::awq::Awq;
use crate::model::dequantisation::bitsandbytes::{EightBits, FourBits};
use crate::model::dequantisation::cache_scales::{CacheKind, cache_kind};
use crate::model::dequantisation::float8::{self, Float8Weights};
use crate::model::dequantisation::gptq::Gptq;
use crate::model::dequantisation::mlx::{self, Mlx};
use crate::model::dequantisation::module_filter::{ModuleFilter, ModulePattern, UNCONVERTED};
use crate::model::dequantisation::mxfp4_experts::Mxfp4Experts;
use crate::model::dequantisation::{
    Dequantisation, FormatGroup, compressed_tensors, hqq, modelopt, one_group, quanto, torchao,
};
use crate::model::json::Config;
use crate::model::quantisation;
use crate::weight::{DType, InputCodes};

/// Reads the settings of a quantised checkpoint; `None` if there are none, or the method is BitNet's.
///
/// # Errors
/// If the method is unknown, or a key asks for something that is not supported.
pub(super) fn read(config: &Config) -> Result<Option<Dequantisation>> {
    if let Some(map) = config.object(quanto::FILE)? {
        return quanto::read(config, &map).map(Some);
    }
    let text = config.object("text_config")?;
    let Some(place) = [Some(config), text.as_ref()]
        .into_iter()
        .flatten()
        .find(|config| [quantisation::KEY, mlx::KEY].iter().any(|key| config.get(key).is_some()))
    else {
        return config.object(modelopt::FILE)?.map(|settings| modelopt::read(config, &settings)).transpose();
    };
    if let Some(settings) = place.object(mlx::KEY)? {
        return mlx(&settings).map(Some);
    }
    let Some(settings) = place.object(quantisation::KEY)? else { return Ok(None) };
    let method = settings.require_str("quant_method")?;
    if let Some(file) = config.object(modelopt::FILE)? {
        return modelopt::read_both(config, &settings, &file).map(Some);
    }
    let quantised = match method {
        _ if method.starts_with("modelopt") => modelopt::read(config, &settings),
        "bitnet" => return Ok(None),
        "awq" => awq(config, &settings),
        "gptq" => gptq(config, &settings),
        "compressed-tensors" => compressed_tensors::read(&settings),
        "fp8" => fp8(&settings),
        "bitsandbytes" => bitsandbytes(&settings),
        "torchao" => torchao::read(&settings),
        "mxfp4" => mxfp4(&settings),
        "hqq" => hqq::read(&settings),
        other => {
            let known = "\"awq\", \"gptq\", \"compressed-tensors\", \"fp8\", \"bitsandbytes\", \"torchao\", \"mxfp4\", \"hqq\", \
                         \"modelopt\" or \"bitnet\" (other quantised checkpoints are not supported)";
            Err(settings.bad_key("quant_method", format!("{other:?}"), known))
        }
    };
    quantised.map(Some)
}

fn awq(config: &Config, settings: &Config) -> Result<Dequantisation> {
    let ignored =
        ["backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "meta", "desc_act", "sym", "lm_head"];
    let read = [
        "quant_method",
        "bits",
        "w_bit",
        "group_size",
        "q_group_size",
        "zero_point",
        "version",
        "format",
        UNCONVERTED,
    ];
    settings.only_keys(&[&read[..], &ignored].concat())?;
    for key in ["bits", "w_bit"] {
        settings.only(key, &[4.into()], "4")?;
    }
    settings.only("zero_point", &[true.into()], "true (AWQ without zero points is not supported)")?;
    settings.only("backend", &["autoawq".into(), "auto".into(), "gemm".into()], "\"autoawq\"")?;
    for key in ["version", "format"] {
        let gemm = ["gemm".into(), "GEMM".into()];
        settings.only(key, &gemm, "\"gemm\" (weights packed for other kernels are not supported)")?;
    }
    let key = if settings.get("q_group_size").is_some() { "q_group_size" } else { "group_size" };
    let group = group_size(settings, key, 128)?;
    let mut filter = ModuleFilter::all(UNCONVERTED);
    filter.exclude_listed(settings, UNCONVERTED)?;
    filter.maybe_excluded = settings.texts(UNCONVERTED)?.into_iter().map(str::to_owned).collect();
    let format = Awq { group, scales: short_type(config)? };
    Ok(one_group(format!("AWQ, 4 bits, {}", inputs(group)), format, None, filter))
}

/// Keys of GPTQ that affect the weights.
const GPTQ_KEYS: &[&str] = &[
    "quant_method",
    "bits",
    "group_size",
    "desc_act",
    "checkpoint_format",
    "format",
    "pack_dtype",
    DYNAMIC,
    "adapter",
    "is_marlin_format",
    "modules_in_block_to_quantize",
    UNCONVERTED,
];

/// Keys of GPTQ that may differ between modules.
const GPTQ_OWN: &[&str] = &["bits", "group_size", "desc_act", "pack_dtype"];

/// Keys of GPTQ about how the checkpoint was made or is run.
const GPTQ_UNUSED: &[&str] = &[
    "meta",
    "damp_percent",
    "damp_auto_increment",
    "true_sequential",
    "static_groups",
    "model_name_or_path",
    "model_file_base_name",
    "sym",
    "lm_head",
    "tokenizer",
    "dataset",
    "backend",
    "act_group_aware",
    "model_seqlen",
    "block_name_to_quantize",
    "module_name_preceding_first_block",
    "batch_size",
    "pad_token_id",
    "max_input_length",
    "cache_block_outputs",
    "use_cuda_fp16",
    "use_exllama",
    "exllama_config",
    "disable_exllama",
    "mse",
    "parallel_packing",
    "quantizer",
    "method",
    "offload_to_disk",
    "offload_to_disk_path",
    "pack_impl",
    "hyb_act",
];

/// Key of the settings of single modules, and of the list of unquantised modules.
const DYNAMIC: &str = "dynamic";

fn gptq(config: &Config, settings: &Config) -> Result<Dequantisation> {
    settings.only_keys(&[GPTQ_KEYS, GPTQ_UNUSED].concat())?;
    settings.only("is_marlin_format", &[false.into()], "false (Marlin's packing is not supported)")?;
    settings.only("adapter", &[Value::Object(serde_json::Map::new())], "absent (it is not supported)")?;
    let key = if settings.get("checkpoint_format").is_some() { "checkpoint_format" } else { "format" };
    let is_v1 = match settings.optional_str(key)?.unwrap_or("gptq") {
        "gptq" => true,
        "gptq_v2" => false,
        other => return Err(settings.bad_key(key, format!("{other:?}"), "\"gptq\" or \"gptq_v2\"")),
    };
    settings.require_usize("bits")?;
    let whole = Gptq { bits: 0, group: Some(128), is_v1, by_activation: false, scales: short_type(config)? };
    let format = gptq_format(settings, whole)?;
    let name = format!("GPTQ, {} bits, {}", format.bits, inputs(format.group));
    let mut filter = ModuleFilter::all(UNCONVERTED);
    filter.exclude_listed(settings, UNCONVERTED)?;
    let listed = settings.nested_texts("modules_in_block_to_quantize")?;
    if !listed.is_empty() {
        filter.groups = vec![listed.into_iter().map(|text| ModulePattern::Suffix(text.to_owned())).collect()];
    }
    let mut formats = Vec::new();
    if let Some(own) = settings.object(DYNAMIC)? {
        if filter.excluded.is_empty() {
            filter.key_path = settings.path_of(DYNAMIC);
        }
        for text in own.keys() {
            let pattern = ModulePattern::gptq(&own, text)?;
            match (text.starts_with("-:"), own.object(text)?) {
                (true, _) => filter.excluded.push((text.to_owned(), pattern)),
                (false, Some(own)) => {
                    own.only_keys(&[GPTQ_OWN, GPTQ_UNUSED].concat())?;
                    formats.push(gptq_format(&own, format)?);
                    filter.own.push((text.to_owned(), pattern));
                }
                (false, None) => (),
            }
        }
    }
    formats.push(format);
    let group = |format: Gptq| FormatGroup::new(format, None);
    let groups = formats.into_iter().map(group).collect();
    Ok(Dequantisation { name, groups, filter, may_have_float_cache: false, other_names: None })
}

/// Reads the settings of all modules, or of single modules, in place of the given ones.
fn gptq_format(settings: &Config, format: Gptq) -> Result<Gptq> {
    settings.only("pack_dtype", &["int32".into()], "\"int32\"")?;
    let bits = settings.optional_usize("bits")?.unwrap_or(format.bits);
    if ![2, 3, 4, 8].contains(&bits) {
        return Err(settings.bad_key("bits", bits, "2, 3, 4 or 8"));
    }
    let group = match settings.get("group_size") {
        Some(_) => group_size(settings, "group_size", 128)?,
        None => format.group,
    };
    let by_activation = settings.optional_bool("desc_act")?.unwrap_or(format.by_activation);
    Ok(Gptq { bits, group, by_activation, ..format })
}

fn fp8(settings: &Config) -> Result<Dequantisation> {
    const CACHE: &str = "kv_cache_scheme";
    settings.only_keys(&[
        "quant_method",
        "activation_scheme",
        "weight_block_size",
        "dequantize",
        UNCONVERTED,
        "ignored_layers",
        "modules_to_convert",
        "scale_fmt",
        "expert_dtype",
        "fmt",
        "kv_cache_scheme",
        "kv_cache_quant_method",
    ])?;
    settings.only("expert_dtype", &["fp8".into()], "\"fp8\"")?;
    settings.only("fmt", &["e4m3".into()], "\"e4m3\"")?;
    settings.only("kv_cache_quant_method", &[], "absent (it is not supported)")?;
    // AutoFP8 writes "static" for floats with one scale for each layer.
    let may_have_float_cache = match settings.get(CACHE) {
        Some(Value::String(scheme)) if scheme == "static" => true,
        Some(Value::Object(_)) | None => cache_kind(settings)? != Some(CacheKind::Other),
        Some(other) => return Err(settings.bad_key(CACHE, other, "\"static\", or an object with 8 bits")),
    };
    settings.only("modules_to_convert", &[], "absent (it is not supported)")?;
    let has_exponents = match settings.optional_str("scale_fmt")?.unwrap_or("float") {
        "float" => false,
        "ue8m0" => true,
        other => return Err(settings.bad_key("scale_fmt", format!("{other:?}"), "\"float\" or \"ue8m0\"")),
    };
    const IGNORED: &str = "ignored_layers";
    let key = if settings.get(IGNORED).is_some() { IGNORED } else { UNCONVERTED };
    let scheme = settings.optional_str("activation_scheme")?.unwrap_or("dynamic");
    if !["dynamic", "static"].contains(&scheme) {
        return Err(settings.bad_key(
            "activation_scheme",
            format!("{scheme:?}"),
            "\"dynamic\" or \"static\"",
        ));
    }
    let named_by = |tensors: &'static [&'static str], group: ScaleGroup| {
        let activations = match scheme {
            "dynamic" => ActivationScheme::Dynamic(None),
            _ => ActivationScheme::symmetric(InputCodes::Float8, tensors[2]),
        };
        let mut filter = ModuleFilter::all(key);
        filter.exclude_listed(settings, key)?;
        let format = Float8Weights { tensors, group, has_exponents };
        let made = one_group(format!("FP8, {}", group.name()), format, Some(activations), filter);
        Ok(Dequantisation { may_have_float_cache, ..made })
    };
    match settings.get("weight_block_size") {
        Some(_) => named_by(float8::FINE_GRAINED, ScaleGroup::Block(settings.pair("weight_block_size")?)),
        None => {
            let of_transformers = named_by(float8::FINE_GRAINED, ScaleGroup::Tensor)?;
            Ok(named_by(float8::AUTO_FP8, ScaleGroup::Tensor)?.or_named_as(of_transformers))
        }
    }
}

fn bitsandbytes(settings: &Config) -> Result<Dequantisation> {
    const SKIPPED: &str = "llm_int8_skip_modules";
    settings.only_keys(&[
        "quant_method",
        "load_in_4bit",
        "load_in_8bit",
        "_load_in_4bit",
        "_load_in_8bit",
        "llm_int8_threshold",
        SKIPPED,
        "llm_int8_enable_fp32_cpu_offload",
        "llm_int8_has_fp16_weight",
        "bnb_4bit_quant_type",
        "bnb_4bit_use_double_quant",
        "bnb_4bit_compute_dtype",
        "bnb_4bit_quant_storage",
    ])?;
    let mut filter = ModuleFilter::all(SKIPPED);
    filter.exclude_listed(settings, SKIPPED)?;
    if settings.optional_bool("load_in_8bit")?.unwrap_or(false) {
        const THRESHOLD: &str = "llm_int8_threshold";
        let threshold = settings.optional_f32(THRESHOLD)?.unwrap_or(6.0);
        if !(threshold >= 0.0 && threshold.is_finite()) {
            return Err(settings.bad_key(THRESHOLD, threshold, "0 or more"));
        }
        settings.only("llm_int8_has_fp16_weight", &[false.into()], "false (weights are stored as int8)")?;
        let activations = Some(ActivationScheme::Outliers(threshold));
        return Ok(one_group("bitsandbytes, int8".to_owned(), EightBits, activations, filter));
    }
    settings.only("load_in_4bit", &[true.into()], "true, unless load_in_8bit is true")?;
    let kind = settings.optional_str("bnb_4bit_quant_type")?.unwrap_or("fp4");
    let is_nf4 = match kind {
        "nf4" => true,
        "fp4" => false,
        _ => return Err(settings.bad_key("bnb_4bit_quant_type", format!("{kind:?}"), "\"nf4\" or \"fp4\"")),
    };
    Ok(one_group(format!("bitsandbytes, {kind}"), FourBits { is_nf4 }, None, filter))
}

/// Reads the settings of gpt-oss, whose experts alone are quantised.
fn mxfp4(settings: &Config) -> Result<Dequantisation> {
    settings.only_keys(&["quant_method", "dequantize", UNCONVERTED])?;
    let mut filter = ModuleFilter::all(UNCONVERTED);
    filter.exclude_listed(settings, UNCONVERTED)?;
    let experts = ["gate_up_proj", "down_proj"];
    filter.groups = vec![experts.map(|name| ModulePattern::Suffix(format!(".mlp.experts.{name}"))).into()];
    Ok(one_group(format!("MXFP4, {}", ScaleGroup::Inputs(32).name()), Mxfp4Experts, None, filter))
}

/// Reads MLX's settings: one format for all modules, and formats of single modules under their names.
fn mlx(settings: &Config) -> Result<Dequantisation> {
    let mut filter = ModuleFilter { groups: Vec::new(), follows_file: true, ..ModuleFilter::all(mlx::KEY) };
    let (mut groups, mut all) = (Vec::new(), Vec::new());
    for module in settings.keys().filter(|key| !["group_size", "bits", "mode"].contains(key)) {
        match settings.get(module) {
            Some(Value::Bool(false)) => {
                filter.excluded.push((module.to_owned(), ModulePattern::Name(module.to_owned())));
            }
            Some(Value::Bool(true)) => all.push(ModulePattern::Name(module.to_owned())),
            _ => {
                groups.extend(settings.object(module)?.map(|own| mlx_format(&own)).transpose()?);
                filter.groups.push(vec![ModulePattern::Name(module.to_owned())]);
            }
        }
    }
    let format = mlx_format(settings)?;
    let name = format!("MLX, {} bits, groups of {}", format.bits, format.group);
    groups.push(format);
    all.extend([ModulePattern::Linear, ModulePattern::Embedding]);
    filter.groups.push(all);
    let group = |format: Mlx| FormatGroup::new(format, None);
    let groups = groups.into_iter().map(group).collect();
    Ok(Dequantisation { name, groups, filter, may_have_float_cache: false, other_names: None })
}

fn mlx_format(settings: &Config) -> Result<Mlx> {
    settings.only("mode", &["affine".into()], "\"affine\" (other modes are not supported)")?;
    let (bits, group) = (settings.require_usize("bits")?, settings.require_usize("group_size")?);
    if !(2..=8).contains(&bits) || bits == 7 {
        return Err(settings.bad_key("bits", bits, "2, 3, 4, 5, 6 or 8"));
    }
    if group == 0 {
        return Err(settings.bad_key("group_size", 0, "1 or more"));
    }
    Ok(Mlx { bits, group })
}

/// Reads the number of inputs that share a scale; `None` for all (-1).
fn group_size(settings: &Config, key: &str, default: usize) -> Result<Option<usize>> {
    match settings.get(key).and_then(Value::as_i64) {
        Some(-1) => Ok(None),
        Some(0) => Err(settings.bad_key(key, 0, "1 or more, or -1")),
        _ => Ok(Some(settings.optional_usize(key)?.unwrap_or(default))),
    }
}

/// Returns the type that kernels round scales to: bf16 for a model in bf16. Models in other types use the scales as
/// they are stored.
fn short_type(config: &Config) -> Result<Option<DType>> {
    Ok((config.text_type()? == Some("bfloat16")).then_some(DType::BF16))
}

fn inputs(group: Option<usize>) -> String {
    group.map_or(ScaleGroup::Channel, ScaleGroup::Inputs).name()
}
