//! Loaders of all architectures.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::{FileBytes, Format, Gguf, Llama2cFile, TensorFile};
use crate::model::arcee::ArceeFamily;
use crate::model::bitnet::BitnetBlock;
use crate::model::bloom::BloomFamily;
use crate::model::cohere::CohereFamily;
use crate::model::cohere2::Cohere2Family;
use crate::model::decoder::{Decoder, DecoderBlock, ExpertFiles, StandardBlock};
use crate::model::deepseek_v2::DeepseekV2Family;
use crate::model::deepseek_v3::DeepseekV3Family;
use crate::model::dequantisation::Dequantisation;
use crate::model::dots1::Dots1Family;
use crate::model::ernie4_5::Ernie45Family;
use crate::model::ernie4_5_moe::Ernie45MoeFamily;
use crate::model::exaone4::Exaone4Family;
use crate::model::falcon::{self, FalconFamily, TwoNormFalconFamily};
use crate::model::gemma::GemmaFamily;
use crate::model::gemma2::Gemma2Block;
use crate::model::gemma3::Gemma3Block;
use crate::model::glm::GlmFamily;
use crate::model::glm4::Glm4Family;
use crate::model::glm4_moe::Glm4MoeFamily;
use crate::model::glm4_moe_lite::Glm4MoeLiteFamily;
use crate::model::gpt_bigcode::GptBigcodeFamily;
use crate::model::gpt_neox::GptNeoxFamily;
use crate::model::gpt_oss::GptOssFamily;
use crate::model::gpt2::Gpt2;
use crate::model::gptj::GptjFamily;
use crate::model::granite::GraniteBlock;
use crate::model::granite_hybrid::GraniteHybridFamily;
use crate::model::granite_moe::GraniteMoeFamily;
use crate::model::helium::HeliumFamily;
use crate::model::jais2::Jais2Family;
use crate::model::json::{Config, json_of};
use crate::model::lfm2::Lfm2Family;
use crate::model::llama::LlamaBlock;
use crate::model::minimax_m2::MiniMaxM2Family;
use crate::model::mistral::MistralBlock;
use crate::model::mixtral::MixtralFamily;
use crate::model::nemotron::NemotronFamily;
use crate::model::olmo::OlmoFamily;
use crate::model::olmo2::Olmo2Block;
use crate::model::olmo3::Olmo3Family;
use crate::model::olmoe::OlmoeFamily;
use crate::model::opt::OptFamily;
use crate::model::phi::PhiFamily;
use crate::model::phi3::Phi3Block;
use crate::model::qwen2::Qwen2Block;
use crate::model::qwen2_moe::Qwen2MoeFamily;
use crate::model::qwen3::Qwen3Block;
use crate::model::qwen3_moe::Qwen3MoeFamily;
use crate::model::qwen3_next::Qwen3NextFamily;
use crate::model::seed_oss::SeedOssFamily;
use crate::model::smollm3::SmolLm3Block;
use crate::model::special_ids::SpecialIds;
use crate::model::stablelm::StableLmFamily;
use crate::model::starcoder2::Starcoder2Family;
use crate::model::ternary::TernaryFiles;
use crate::model::{Model, adapter};
use crate::weight::DType;

/// A model, and facts about its files.
pub struct LoadedModel {
    /// The model.
    pub model: Box<dyn Model>,
    /// Format: "gguf", "llama2.c", "safetensors" or "pytorch".
    pub format: &'static str,
    /// Type of most of its matrices.
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
    /// Name in dumps.
    architecture: &'static str,
    /// Names in GGUF files.
    gguf_names: &'static [&'static str],
    /// Names in `config.json`.
    model_types: &'static [&'static str],
    /// Defaults of transformers for keys that a `config.json` omits.
    config_defaults: fn() -> Value,
    /// Expert settings, if the architecture has experts.
    experts: Option<ExpertFiles>,
    gguf: fn(&Gguf) -> Result<Box<dyn Model>>,
    hugging_face: fn(&Config, &TensorFile) -> Result<Box<dyn Model>>,
}

/// Loaders of all supported architectures.
const LOADERS: &[Loader] = &[
    LLAMA,
    decoder::<MistralBlock>(),
    MIXTRAL,
    decoder::<Qwen2Block>(),
    decoder::<Qwen3Block>(),
    decoder::<StandardBlock<Qwen2MoeFamily>>(),
    decoder::<StandardBlock<Qwen3MoeFamily>>(),
    decoder::<StandardBlock<Qwen3NextFamily>>(),
    decoder::<Gemma2Block>(),
    decoder::<Gemma3Block>(),
    OLMO2,
    decoder::<SmolLm3Block>(),
    decoder::<GraniteBlock>(),
    decoder::<Phi3Block>(),
    decoder::<StandardBlock<SeedOssFamily>>(),
    decoder::<StandardBlock<GemmaFamily>>(),
    OLMO3,
    decoder::<StandardBlock<Ernie45Family>>(),
    decoder::<StandardBlock<Exaone4Family>>(),
    decoder::<StandardBlock<Glm4Family>>(),
    decoder::<StandardBlock<GlmFamily>>(),
    decoder::<StandardBlock<HeliumFamily>>(),
    decoder::<StandardBlock<ArceeFamily>>(),
    decoder::<StandardBlock<OlmoeFamily>>(),
    decoder::<StandardBlock<GraniteMoeFamily>>(),
    decoder::<StandardBlock<Starcoder2Family>>(),
    decoder::<StandardBlock<GptNeoxFamily>>(),
    decoder::<StandardBlock<StableLmFamily>>(),
    decoder::<StandardBlock<CohereFamily>>(),
    decoder::<StandardBlock<Cohere2Family>>(),
    decoder::<StandardBlock<OlmoFamily>>(),
    decoder::<StandardBlock<GptOssFamily>>(),
    decoder::<StandardBlock<Jais2Family>>(),
    decoder::<StandardBlock<NemotronFamily>>(),
    decoder::<StandardBlock<PhiFamily>>(),
    FALCON,
    decoder::<StandardBlock<OptFamily>>(),
    decoder::<StandardBlock<BloomFamily>>(),
    decoder::<StandardBlock<GptBigcodeFamily>>(),
    decoder::<StandardBlock<GptjFamily>>(),
    decoder::<StandardBlock<DeepseekV3Family>>(),
    DEEPSEEK_V2,
    GLM4_MOE_LITE,
    decoder::<StandardBlock<Glm4MoeFamily>>(),
    decoder::<StandardBlock<Dots1Family>>(),
    decoder::<StandardBlock<MiniMaxM2Family>>(),
    decoder::<StandardBlock<Ernie45MoeFamily>>(),
    decoder::<StandardBlock<GraniteHybridFamily>>(),
    decoder::<StandardBlock<Lfm2Family>>(),
    decoder::<BitnetBlock>(),
    GPT2,
];

/// Loader of Llama. GGUF files of Mixtral have Llama's name and a number of experts.
const LLAMA: Loader = Loader {
    gguf: |file| match file.optional::<u64>("llama.expert_count")? {
        None | Some(0) => Ok(Box::new(Decoder::<LlamaBlock>::from_gguf(file)?)),
        Some(_) => Ok(Box::new(Decoder::<StandardBlock<MixtralFamily>>::from_gguf(file)?)),
    },
    ..decoder::<LlamaBlock>()
};

/// Loader of Mixtral, whose GGUF files have Llama's name.
const MIXTRAL: Loader = Loader { gguf_names: &[], ..decoder::<StandardBlock<MixtralFamily>>() };

/// Loader of OLMo 2. GGUF files of OLMo 3 have its name and a sliding window.
const OLMO2: Loader = Loader {
    gguf: |file| match file.optional::<u64>("olmo2.attention.sliding_window")? {
        None | Some(0) => Ok(Box::new(Decoder::<Olmo2Block>::from_gguf(file)?)),
        Some(_) => Ok(Box::new(Decoder::<StandardBlock<Olmo3Family>>::from_gguf(file)?)),
    },
    ..decoder::<Olmo2Block>()
};

/// Loader of Falcon, whose blocks have one norm of their input or two.
const FALCON: Loader = Loader {
    gguf: |file| match file.tensors.get("blk.0.attn_norm_2.weight") {
        None => Ok(Box::new(Decoder::<StandardBlock<FalconFamily>>::from_gguf(file)?)),
        Some(_) => Ok(Box::new(Decoder::<StandardBlock<TwoNormFalconFamily>>::from_gguf(file)?)),
    },
    hugging_face: |config, tensors| match falcon::has_two_norms(config)? {
        false => Ok(Box::new(Decoder::<StandardBlock<FalconFamily>>::from_hugging_face(config, tensors)?)),
        true => {
            Ok(Box::new(Decoder::<StandardBlock<TwoNormFalconFamily>>::from_hugging_face(config, tensors)?))
        }
    },
    ..decoder::<StandardBlock<FalconFamily>>()
};

/// Loader of OLMo 3, whose GGUF files have OLMo 2's name.
const OLMO3: Loader = Loader { gguf_names: &[], ..decoder::<StandardBlock<Olmo3Family>>() };

/// Loader of DeepSeek V2, whose GGUF files have DeepSeek V3's name.
const DEEPSEEK_V2: Loader = Loader { gguf_names: &[], ..decoder::<StandardBlock<DeepseekV2Family>>() };

/// Loader of GLM 4.7 Flash, whose GGUF files have DeepSeek's name.
const GLM4_MOE_LITE: Loader = Loader { gguf_names: &[], ..decoder::<StandardBlock<Glm4MoeLiteFamily>>() };

const GPT2: Loader = Loader {
    architecture: "gpt2",
    gguf_names: &["gpt2"],
    model_types: &["gpt2"],
    config_defaults: || Value::Null,
    experts: None,
    gguf: |file| Ok(Box::new(Gpt2::from_gguf(file)?)),
    hugging_face: |config, tensors| Ok(Box::new(Gpt2::from_hugging_face(config, tensors)?)),
};

const fn decoder<B: DecoderBlock>() -> Loader {
    Loader {
        architecture: B::FAMILY.architecture,
        gguf_names: B::FAMILY.gguf_names,
        model_types: B::FAMILY.model_types,
        config_defaults: B::FAMILY.config_defaults,
        experts: B::FAMILY.experts,
        gguf: |file| Ok(Box::new(Decoder::<B>::from_gguf(file)?)),
        hugging_face: |config, tensors| Ok(Box::new(Decoder::<B>::from_hugging_face(config, tensors)?)),
    }
}

/// Returns the names of the supported architectures.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    LOADERS.iter().map(|loader| loader.architecture)
}

/// Returns true if experts of this architecture may be chosen by other scores than the router's logits.
pub fn may_have_expert_scores(architecture: &str) -> bool {
    has_experts(architecture, ExpertFiles::may_have_scores)
}

/// Returns true if tokens of this architecture may choose from some groups of experts only.
pub fn may_have_expert_groups(architecture: &str) -> bool {
    has_experts(architecture, |experts| experts.may_have_groups)
}

fn has_experts(architecture: &str, are_such: impl Fn(&ExpertFiles) -> bool) -> bool {
    let named = LOADERS.iter().filter(|loader| loader.architecture == architecture);
    named.filter_map(|loader| loader.experts.as_ref()).any(are_such)
}

/// Returns true if our engine knows the architecture of a `config.json` with this `model_type`.
pub fn is_known_model_type(name: &str) -> bool {
    LOADERS.iter().any(|loader| loader.model_types.contains(&name))
}

/// Returns the loader for the architecture name that a file has under `key`.
fn loader_of(
    file: &Path,
    key: &str,
    name: &str,
    names: fn(&'static Loader) -> &'static [&'static str],
) -> Result<&'static Loader> {
    LOADERS.iter().find(|loader| names(loader).contains(&name)).ok_or_else(|| {
        let known: Vec<_> = LOADERS.iter().flat_map(names).copied().collect();
        Error::bad_key(file, key, name, format!("one of {}", known.join(", ")))
    })
}

pub(super) fn load_gguf(mut file: Gguf, ternary: &TernaryFiles) -> Result<LoadedModel> {
    const KEY: &str = "general.architecture";
    adapter::refuse_gguf_adapter(&file)?;
    let loader = loader_of(file.tensors.path(), KEY, file.require(KEY)?, |loader| loader.gguf_names)?;
    let precision = main_type(&file.tensors);
    file.tensors = ternary.unpacked(file.tensors)?;
    let model = (loader.gguf)(&file)?;
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
    let model = Box::new(Decoder::<LlamaBlock>::from_llama2c(file)?);
    let (format, precision) = (Format::Llama2c.name(), main_type(&file.tensors));
    let (begin_token, end_tokens) = (Some(LLAMA2C_BEGIN_TOKEN), LLAMA2C_END_TOKENS.to_vec());
    Ok(LoadedModel { model, format, precision, begin_token, end_tokens, notes: Vec::new() })
}

pub(super) fn load_hugging_face(
    config: &FileBytes,
    generation: Option<&FileBytes>,
    weights: &TensorFile,
    format: Format,
) -> Result<LoadedModel> {
    const KEY: &str = "model_type";
    let json = json_of(config)?;
    let config = Config::new(&config.path, &json);
    let loader = loader_of(config.path(), KEY, config.require_str(KEY)?, |loader| loader.model_types)?;
    if let Some(text) = config.object("text_config")?
        && let Some(inner) = text.optional_str(KEY)?
        && !loader.model_types.contains(&inner)
    {
        return Err(text.bad_key(KEY, inner, format!("one of {}", loader.model_types.join(", "))));
    }
    let model = (loader.hugging_face)(&config, weights)?;
    let text = config.object("text_config")?.unwrap_or(config.clone());
    let SpecialIds { begin: begin_token, end: end_tokens } = SpecialIds::read(&config, generation)?;
    let mut notes = defaults_taken(&text, &(loader.config_defaults)());
    let quantised = Dequantisation::read(&config)?;
    notes.extend(quantised.as_ref().map(|quantised| {
        let more = match quantised.quantises_activations() {
            true => "; the configuration also quantises activations: xcheck assumes unquantised ones unless the dump's values show their codes",
            false => "",
        };
        format!(
            "the weights are quantised ({}): they are decoded before products use them{more}",
            quantised.name()
        )
    }));
    let precision = match (quantised, main_type(weights)) {
        (Some(_), _) => text.model_type()?.or(config.model_type()?).map_or(DType::F32, plain_type),
        // Packed codes are bytes in the file; products use I2_S rows.
        (None, DType::U8) => DType::I2_S,
        (None, other) => other,
    };
    Ok(LoadedModel { model, format: format.name(), precision, begin_token, end_tokens, notes })
}

/// Returns the type that a `config.json` names; F32 for unknown names.
fn plain_type(name: &str) -> DType {
    match name {
        "bfloat16" => DType::BF16,
        "float16" => DType::F16,
        _ => DType::F32,
    }
}

/// Returns notes on absent keys for which transformers' default is used although a specification gives another value.
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
