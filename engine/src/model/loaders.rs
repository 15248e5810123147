//! Loaders of all architectures.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::{FileBytes, Format, Gguf, Llama2cFile, TensorFile};
use crate::model::bitnet::BitnetBlock;
use crate::model::decoder::{Decoder, DecoderBlock, ExpertFiles, Family, StandardBlock};
use crate::model::dequantisation::Dequantisation;
use crate::model::gemma3::Gemma3Block;
use crate::model::gemma3n::Gemma3nBlock;
use crate::model::gemma4::Gemma4Block;
use crate::model::gpt2::Gpt2;
use crate::model::json::Config;
use crate::model::llama::LlamaBlock;
use crate::model::phi3::Phi3Block;
use crate::model::qwen3::Qwen3Block;
use crate::model::special_ids::SpecialIds;
use crate::model::ternary::TernaryFiles;
use crate::model::{
    Model, adapter, arcee, bitnet, bloom, cohere, cohere2, deepseek_v2, deepseek_v3, dots1, ernie4_5,
    ernie4_5_moe, exaone4, falcon, falcon_h1, gemma, gemma2, gemma3, gemma3n, gemma4, glm, glm4, glm4_moe,
    glm4_moe_lite, gpt_bigcode, gpt_neox, gpt_oss, gpt2, gptj, granite, granite_hybrid, granite_moe, helium,
    hunyuan_dense, jais2, lfm2, llama, llama4, minimax_m2, ministral3, mistral, mixtral, nemotron,
    nemotron_h, olmo, olmo2, olmo3, olmoe, opt, phi, phi3, qwen2, qwen2_moe, qwen3, qwen3_5, qwen3_moe,
    qwen3_next, seed_oss, smollm3, stablelm, starcoder2,
};
use crate::weight::DType;

/// A model, and facts about its files.
pub struct LoadedModel {
    /// The model.
    pub model: Box<dyn Model>,
    /// Format: "gguf", "llama2.c", "safetensors" or "pytorch".
    pub format: &'static str,
    /// Type of most of the model's matrices.
    pub precision: DType,
    /// Token that begins a text, if the files state it.
    pub begin_token: Option<u32>,
    /// Tokens that end a text or a turn of a conversation, if the files state them.
    pub end_tokens: Vec<u32>,
    /// Notes on settings that the files leave undetermined.
    pub notes: Vec<String>,
}

/// Loader of an architecture.
struct Loader {
    /// Names in files, and conventions.
    family: &'static Family,
    gguf: fn(&Gguf, &'static Family) -> Result<Box<dyn Model>>,
    hugging_face: fn(&Config, &TensorFile, &'static Family) -> Result<Box<dyn Model>>,
}

/// Loaders of all supported architectures. If several have the same name in files, the first one loads the file.
const LOADERS: &[Loader] = &[
    LLAMA,
    standard(&mistral::FAMILY),
    standard(&ministral3::FAMILY),
    standard(&mixtral::FAMILY),
    standard(&qwen2::FAMILY),
    decoder::<Qwen3Block>(&qwen3::FAMILY),
    standard(&qwen2_moe::FAMILY),
    standard(&qwen3_moe::FAMILY),
    standard(&qwen3_next::FAMILY),
    standard(&qwen3_5::FAMILY),
    standard(&qwen3_5::MOE_FAMILY),
    standard(&gemma2::FAMILY),
    decoder::<Gemma3Block>(&gemma3::FAMILY),
    decoder::<Gemma3nBlock>(&gemma3n::FAMILY),
    decoder::<Gemma4Block>(&gemma4::FAMILY),
    OLMO2,
    standard(&olmo3::FAMILY),
    standard(&smollm3::FAMILY),
    standard(&granite::FAMILY),
    decoder::<Phi3Block>(&phi3::FAMILY),
    standard(&seed_oss::FAMILY),
    standard(&gemma::FAMILY),
    standard(&ernie4_5::FAMILY),
    standard(&exaone4::FAMILY),
    standard(&glm4::FAMILY),
    standard(&glm::FAMILY),
    standard(&helium::FAMILY),
    standard(&arcee::FAMILY),
    standard(&olmoe::FAMILY),
    standard(&granite_moe::FAMILY),
    standard(&starcoder2::FAMILY),
    standard(&gpt_neox::FAMILY),
    standard(&stablelm::FAMILY),
    standard(&cohere::FAMILY),
    standard(&cohere2::FAMILY),
    standard(&olmo::FAMILY),
    standard(&gpt_oss::FAMILY),
    standard(&jais2::FAMILY),
    standard(&nemotron::FAMILY),
    standard(&phi::FAMILY),
    FALCON,
    standard(&opt::FAMILY),
    standard(&bloom::FAMILY),
    standard(&gpt_bigcode::FAMILY),
    standard(&gptj::FAMILY),
    standard(&hunyuan_dense::FAMILY),
    standard(&deepseek_v3::FAMILY),
    standard(&deepseek_v2::FAMILY),
    standard(&glm4_moe_lite::FAMILY),
    standard(&glm4_moe::FAMILY),
    standard(&dots1::FAMILY),
    standard(&minimax_m2::FAMILY),
    standard(&ernie4_5_moe::FAMILY),
    standard(&granite_hybrid::FAMILY),
    standard(&lfm2::FAMILY),
    standard(&lfm2::MOE_FAMILY),
    standard(&falcon_h1::FAMILY),
    standard(&llama4::FAMILY),
    standard(&nemotron_h::FAMILY),
    decoder::<BitnetBlock>(&bitnet::FAMILY),
    GPT2,
];

/// Loader of Llama. GGUF files of Mixtral have Llama's name and a number of experts.
const LLAMA: Loader = Loader {
    gguf: |file, family| match file.optional::<u64>("llama.expert_count")? {
        None | Some(0) => Ok(Box::new(Decoder::<LlamaBlock>::from_gguf(file, family)?)),
        Some(_) => Ok(Box::new(Decoder::<StandardBlock>::from_gguf(file, &mixtral::FAMILY)?)),
    },
    ..decoder::<LlamaBlock>(&llama::FAMILY)
};

/// Loader of OLMo 2. GGUF files of OLMo 3 have its name and a sliding window.
const OLMO2: Loader = Loader {
    gguf: |file, family| {
        let has_window = file.optional::<u64>("olmo2.attention.sliding_window")?.is_some_and(|size| size > 0);
        let family = if has_window { &olmo3::FAMILY } else { family };
        Ok(Box::new(Decoder::<StandardBlock>::from_gguf(file, family)?))
    },
    ..standard(&olmo2::FAMILY)
};

/// Loader of Falcon, whose blocks have one norm of their input or two.
const FALCON: Loader = Loader {
    gguf: |file, _| {
        let has_two = file.tensors.get("blk.0.attn_norm_2.weight").is_some();
        Ok(Box::new(Decoder::<StandardBlock>::from_gguf(file, falcon::family(has_two))?))
    },
    hugging_face: |config, tensors, _| {
        let family = falcon::family(falcon::has_two_norms(config)?);
        Ok(Box::new(Decoder::<StandardBlock>::from_hugging_face(config, tensors, family)?))
    },
    ..standard(&falcon::FAMILY)
};

const GPT2: Loader = Loader {
    family: &gpt2::FAMILY,
    gguf: |file, _| Ok(Box::new(Gpt2::from_gguf(file)?)),
    hugging_face: |config, tensors, _| Ok(Box::new(Gpt2::from_hugging_face(config, tensors)?)),
};

/// Returns the loader of an architecture with the common block.
const fn standard(family: &'static Family) -> Loader {
    decoder::<StandardBlock>(family)
}

const fn decoder<B: DecoderBlock>(family: &'static Family) -> Loader {
    Loader {
        family,
        gguf: |file, family| Ok(Box::new(Decoder::<B>::from_gguf(file, family)?)),
        hugging_face: |config, tensors, family| {
            Ok(Box::new(Decoder::<B>::from_hugging_face(config, tensors, family)?))
        },
    }
}

/// Returns the names of the supported architectures.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    LOADERS.iter().map(|loader| loader.family.architecture)
}

/// Returns true if experts of this architecture may be chosen by other scores than the router's logits.
pub fn may_have_expert_scores(architecture: &str) -> bool {
    has_experts(architecture, ExpertFiles::may_have_scores)
}

/// Returns true if a token of this architecture may choose only from some groups of experts.
pub fn may_have_expert_groups(architecture: &str) -> bool {
    has_experts(architecture, |experts| experts.may_have_groups)
}

fn has_experts(architecture: &str, are_such: impl Fn(&ExpertFiles) -> bool) -> bool {
    let named = LOADERS.iter().filter(|loader| loader.family.architecture == architecture);
    named.filter_map(|loader| loader.family.experts.as_ref()).any(are_such)
}

/// Returns true if our engine knows the architecture of a `config.json` with this `model_type`.
pub fn is_known_model_type(name: &str) -> bool {
    LOADERS.iter().any(|loader| loader.family.model_types.contains(&name))
}

/// Returns the loader for the architecture name that a file has under `key`.
fn loader_of(
    file: &Path,
    key: &str,
    name: &str,
    names: fn(&'static Loader) -> &'static [&'static str],
) -> Result<&'static Loader> {
    LOADERS.iter().find(|loader| names(loader).contains(&name)).ok_or_else(|| {
        let mut known: Vec<_> = LOADERS.iter().flat_map(names).copied().collect();
        // Architectures with the same name in files are neighbours in the list.
        known.dedup();
        Error::bad_key(file, key, name, format!("one of {}", known.join(", ")))
    })
}

pub(super) fn load_gguf(mut file: Gguf, ternary: &TernaryFiles) -> Result<LoadedModel> {
    const KEY: &str = "general.architecture";
    adapter::refuse_gguf_adapter(&file)?;
    let loader = loader_of(file.tensors.path(), KEY, file.require(KEY)?, |loader| loader.family.gguf_names)?;
    let precision = main_type(&file.tensors);
    file.tensors = ternary.unpacked(file.tensors)?;
    let model = (loader.gguf)(&file, loader.family)?;
    let end = |kind: &&str| file.optional(&format!("tokenizer.ggml.{kind}_token_id")).transpose();
    let end_tokens = ["eos", "eot", "eom"].iter().filter_map(end).collect::<Result<_>>()?;
    let begin_token = file.optional("tokenizer.ggml.bos_token_id")?;
    Ok(LoadedModel {
        model,
        format: Format::Gguf.name(),
        precision,
        begin_token,
        end_tokens,
        notes: Vec::new(),
    })
}

/// Token that begins a text in `run.c`; llama2.c files do not state it.
const LLAMA2C_BEGIN_TOKEN: u32 = 1;

/// Tokens that end a text in `run.c`; its chat mode stops only at the second. llama2.c files do not state them.
const LLAMA2C_END_TOKENS: [u32; 2] = [1, 2];

pub(super) fn load_llama2c(file: &Llama2cFile) -> Result<LoadedModel> {
    let model = Box::new(Decoder::<LlamaBlock>::from_llama2c(file, &llama::FAMILY)?);
    let (format, precision) = (Format::Llama2c.name(), main_type(&file.tensors));
    let (begin_token, end_tokens) = (Some(LLAMA2C_BEGIN_TOKEN), LLAMA2C_END_TOKENS.to_vec());
    Ok(LoadedModel { model, format, precision, begin_token, end_tokens, notes: Vec::new() })
}

pub(super) fn load_hugging_face(
    config: &Config,
    generation: Option<&FileBytes>,
    weights: &TensorFile,
    format: Format,
) -> Result<LoadedModel> {
    const KEY: &str = "model_type";
    let name = config.require_str(KEY)?;
    let mut loader = loader_of(config.path(), KEY, name, |loader| loader.family.model_types)?;
    if let Some(text) = config.object("text_config")?
        && let Some(inner) = text.optional_str(KEY)?
    {
        // Text models of several architectures may be parts of one multimodal model.
        let mut relatives = LOADERS.iter().filter(|loader| loader.family.model_types.contains(&name));
        let names = relatives.clone().flat_map(|loader| loader.family.model_types).copied();
        let expected = format!("one of {}", names.collect::<Vec<_>>().join(", "));
        loader = relatives
            .find(|loader| loader.family.model_types.contains(&inner))
            .ok_or_else(|| text.bad_key(KEY, inner, expected))?;
    }
    let model = (loader.hugging_face)(config, weights, loader.family)?;
    let text = config.object("text_config")?.unwrap_or(config.clone());
    let SpecialIds { begin: begin_token, end: end_tokens } = SpecialIds::read(config, generation)?;
    let mut notes = defaults_taken(&text, &(loader.family.config_defaults)());
    let quantised = Dequantisation::read(config)?;
    notes.extend(quantised.as_ref().map(|quantised| {
        let more = match quantised.quantises_activations() {
            true if quantised.stores_input_scales() => "; the configuration also quantises activations by stored scales: xcheck assumes unquantised ones unless the dump's values show the codes of these scales",
            true => "; the configuration also quantises activations: xcheck assumes unquantised ones unless the dump's values show their codes",
            false => "",
        };
        format!(
            "the weights are quantised ({}): they are decoded before products use them{more}",
            quantised.name()
        )
    }));
    let precision = match (quantised, main_type(weights)) {
        (Some(_), _) => config.text_type()?.map_or(DType::F32, plain_type),
        // Packed codes are bytes in the file; products use I2_S rows.
        (None, DType::U8) => DType::I2_S,
        (None, other) => other,
    };
    Ok(LoadedModel { model, format: format.name(), precision, begin_token, end_tokens, notes })
}

/// Returns the type that a `config.json` names. F32 for unknown names.
fn plain_type(name: &str) -> DType {
    match name {
        "bfloat16" => DType::BF16,
        "float16" => DType::F16,
        _ => DType::F32,
    }
}

/// Returns a note on each absent key for which transformers' default is used although the specification gives
/// another value.
fn defaults_taken(config: &Config, defaults: &Value) -> Vec<String> {
    let specified = [("rms_norm_eps", "1e-5"), ("query_pre_attn_scalar", "head_dim")];
    let note = |(key, specified): (&str, &str)| {
        let default = defaults.get(key).filter(|_| config.get(key).is_none())?;
        Some(format!(
            "config.json does not set {key}: using transformers' default, {default} (the Hugging Face parity \
             specification says {specified})"
        ))
    };
    specified.into_iter().filter_map(note).collect()
}

/// Returns the type of most weights, by number of elements.
fn main_type(file: &TensorFile) -> DType {
    let mut elements = BTreeMap::<DType, usize>::new();
    for (_, tensor) in file.iter().filter(|(_, tensor)| tensor.shape.len() > 1) {
        *elements.entry(tensor.dtype).or_default() += tensor.elements();
    }
    elements.into_iter().max_by_key(|(_, elements)| *elements).map_or(DType::F32, |(dtype, _)| dtype)
}
