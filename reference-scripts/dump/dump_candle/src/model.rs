//! The models of candle-transformers behind one function.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::quantized::gguf_file;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{gemma3, llama, quantized_gemma3, quantized_llama, quantized_qwen3, qwen3};
use serde_json::Value;

/// What one pass over 1 x T tokens gives.
pub struct Step {
    /// 1 x T x d
    pub embed: Option<Tensor>,
    /// 1 x T x d
    pub final_norm: Option<Tensor>,
    /// V values, with leading axes of 1
    pub last_logits: Tensor,
}

/// A model and its cache.
pub struct Model {
    body: Body,
    dtype: DType,
    weights: String,
}

enum Body {
    Llama(Box<llama::Llama>, Box<llama::Cache>),
    /// The model, and its body alone: the same weights and a cache of its own.
    Qwen3(Box<qwen3::ModelForCausalLM>, Box<qwen3::Model>),
    Gemma3(Box<gemma3::Model>),
    QuantizedLlama(Box<quantized_llama::ModelWeights>),
    QuantizedQwen3(Box<quantized_qwen3::ModelWeights>),
    QuantizedGemma3(Box<quantized_gemma3::ModelWeights>),
}

impl Model {
    /// Loads a Hugging Face directory as `dtype`, or a GGUF file, whose activations are always f32.
    pub fn load(path: &Path, dtype: DType) -> Result<Self> {
        if path.is_dir() { Self::load_directory(path, dtype) } else { Self::load_gguf(path, dtype) }
    }

    fn load_directory(path: &Path, dtype: DType) -> Result<Self> {
        let file = path.join("config.json");
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let config: Value = serde_json::from_str(&text)?;
        // SAFETY: the files are not written while this program runs.
        let weights =
            unsafe { VarBuilder::from_mmaped_safetensors(&weight_files(path)?, dtype, &Device::Cpu)? };
        let body = match config["model_type"].as_str() {
            Some("llama") => {
                let config: llama::LlamaConfig = serde_json::from_value(config)?;
                let config = config.into_config(false);
                let cache = llama::Cache::new(true, dtype, &config, &Device::Cpu)?;
                Body::Llama(llama::Llama::load(weights, &config)?.into(), cache.into())
            }
            Some("qwen3") => {
                let config: qwen3::Config = serde_json::from_value(config)?;
                let body = qwen3::Model::new(&config, weights.clone())?;
                Body::Qwen3(qwen3::ModelForCausalLM::new(&config, weights)?.into(), body.into())
            }
            Some("gemma3_text") => {
                let config: gemma3::Config = serde_json::from_value(config)?;
                Body::Gemma3(gemma3::Model::new(false, &config, weights)?.into())
            }
            other => bail!("{}: a model_type of {other:?}, not llama, qwen3 or gemma3_text", path.display()),
        };
        Ok(Self { body, dtype, weights: name(dtype).into() })
    }

    fn load_gguf(path: &Path, dtype: DType) -> Result<Self> {
        ensure!(dtype == DType::F32, "--dtype: candle computes in f32 with a GGUF file");
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        let content = gguf_file::Content::read(&mut file)?;
        let architecture = content.metadata.get("general.architecture").context("no general.architecture")?;
        let architecture = architecture.to_string()?.clone();
        let mut kinds: Vec<_> =
            content.tensor_infos.values().map(|info| format!("{:?}", info.ggml_dtype)).collect();
        kinds.sort();
        kinds.dedup();
        let body = match architecture.as_str() {
            "llama" => Body::QuantizedLlama(
                quantized_llama::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?.into(),
            ),
            "qwen3" => Body::QuantizedQwen3(
                quantized_qwen3::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?.into(),
            ),
            "gemma3" => Body::QuantizedGemma3(
                quantized_gemma3::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?.into(),
            ),
            other => bail!("{}: architecture {other}, not llama, qwen3 or gemma3", path.display()),
        };
        Ok(Self { body, dtype, weights: kinds.join(" ") })
    }

    /// One pass: `tokens` is 1 x T, the first at `position`.
    pub fn forward(&mut self, tokens: &Tensor, position: usize) -> Result<Step> {
        let alone = |last_logits| Step { embed: None, final_norm: None, last_logits };
        Ok(match &mut self.body {
            Body::Llama(model, cache) => Step {
                embed: Some(model.embed(tokens)?),
                final_norm: None,
                last_logits: model.forward(tokens, position, cache)?,
            },
            Body::Qwen3(model, body) => Step {
                embed: None,
                final_norm: Some(body.forward(tokens, position)?),
                last_logits: model.forward(tokens, position)?,
            },
            Body::Gemma3(model) => alone(model.forward(tokens, position)?),
            Body::QuantizedLlama(model) => alone(model.forward(tokens, position)?),
            Body::QuantizedQwen3(model) => alone(model.forward(tokens, position)?),
            Body::QuantizedGemma3(model) => alone(model.forward(tokens, position)?),
        })
    }

    /// The family's name in a manifest.
    pub fn architecture(&self) -> &'static str {
        match self.body {
            Body::Llama(..) | Body::QuantizedLlama(_) => "llama",
            Body::Qwen3(..) | Body::QuantizedQwen3(_) => "qwen3",
            Body::Gemma3(_) | Body::QuantizedGemma3(_) => "gemma3",
        }
    }

    /// How the model's code computes attention on a CPU.
    pub fn attention(&self) -> &'static str {
        match self.body {
            Body::Llama(..) => "eager, in f32",
            Body::Qwen3(..) => "flash, in f32",
            Body::Gemma3(_) => "eager",
            Body::QuantizedLlama(_) | Body::QuantizedQwen3(_) | Body::QuantizedGemma3(_) => {
                "quantized model's"
            }
        }
    }

    /// The type of keys and values in the cache: that of the activations.
    pub fn kv_cache(&self) -> &'static str {
        name(self.dtype)
    }

    /// The type of the activations.
    pub fn dtype(&self) -> &'static str {
        name(self.dtype)
    }

    /// The types of the weights.
    pub fn weights(&self) -> &str {
        &self.weights
    }

    /// GGUF files of Llama have the rows of q and k reordered, and candle rotates neighbours then.
    pub fn rope_pairing(&self) -> &'static str {
        if matches!(self.body, Body::QuantizedLlama(_)) { "interleaved" } else { "half" }
    }
}

fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        _ => "f32",
    }
}

/// A GGUF file, or the weight files of a directory in file-name order.
pub fn weight_files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let whole = path.join("model.safetensors");
    if whole.is_file() {
        return Ok(vec![whole]);
    }
    let mut files = vec![];
    for entry in path.read_dir()? {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("model-") && name.ends_with(".safetensors") {
            files.push(file);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "{}: neither model.safetensors nor model-*.safetensors", path.display());
    Ok(files)
}
