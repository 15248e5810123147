//! The sizes and constants of a decoder, as GGUF metadata and as `config.json` state them.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::{Gguf, Source};
use crate::model::json::Config;
use crate::model::weights::Weights;
use crate::ops::rope::{Rope, RopeScaling};
use crate::tensor::{RopePairing, Tensor};

/// Sizes and constants of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Entries of the vocabulary, V.
    pub vocab_size: usize,
    /// Width of the residual stream, d.
    pub hidden_size: usize,
    /// Width of the feed-forward block, F.
    pub ffn_size: usize,
    /// Transformer blocks.
    pub n_layers: usize,
    /// Query heads, H.
    pub n_heads: usize,
    /// Key and value heads, Hkv; each serves H / Hkv query heads.
    pub n_kv_heads: usize,
    /// Values of one head, D.
    pub head_dim: usize,
    /// Positions the model was trained for.
    pub context_length: usize,
    /// Added to the mean square in every RMSNorm.
    pub norm_eps: f32,
    /// Rotary positions.
    pub rope: Rope,
    /// What q·k is multiplied with: 1 / √D.
    pub attn_scale: f32,
    /// Whether the vocabulary projection is the embedding table.
    pub tied_output: bool,
}

impl DecoderConfig {
    /// `[T, heads · D]` seen as `[T, heads, D]`.
    pub fn heads(&self, x: Tensor) -> Tensor {
        let shape = [x.rows(), x.row_len() / self.head_dim, self.head_dim];
        x.reshaped(&shape)
    }

    /// Reads the metadata of a GGUF file, whose keys begin with the architecture's name.
    pub(super) fn from_gguf(file: &Gguf, architecture: &'static str, pairing: RopePairing) -> Result<Self> {
        let key = |name: &str| format!("{architecture}.{name}");
        let path = file.tensors.path();
        refuse_gguf_extensions(file, architecture)?;
        let hidden_size = file.require::<usize>(&key("embedding_length"))?;
        let n_heads = file.require::<usize>(&key("attention.head_count"))?;
        let head_dim = match file.optional(&key("attention.key_length"))? {
            Some(head_dim) => head_dim,
            None => derive_head_dim(path, &key("attention.head_count"), hidden_size, n_heads)?,
        };
        let theta = file.optional(&key("rope.freq_base"))?.unwrap_or(DEFAULT_THETA);
        let config = Self {
            vocab_size: embedding_rows(file, architecture)?,
            hidden_size,
            ffn_size: file.require(&key("feed_forward_length"))?,
            n_layers: file.require(&key("block_count"))?,
            n_heads,
            n_kv_heads: file.optional(&key("attention.head_count_kv"))?.unwrap_or(n_heads),
            head_dim,
            context_length: file.require(&key("context_length"))?,
            norm_eps: file.require(&key("attention.layer_norm_rms_epsilon"))?,
            rope: Rope { theta, head_dim, pairing, scaling: gguf_scaling(file, architecture, head_dim)? },
            attn_scale: attn_scale(head_dim),
            tied_output: file.tensors.get("output.weight").is_none(),
        };
        config.check(path)?;
        config.check_gguf_agrees(file, architecture)?;
        Ok(config)
    }

    /// Reads a `config.json`.
    pub(super) fn from_hugging_face(source: &Source, json: &Value) -> Result<Self> {
        let file = Config::new(source, json);
        refuse_json_extensions(&file)?;
        let hidden_size = file.require_usize("hidden_size")?;
        let n_heads = file.require_usize("num_attention_heads")?;
        let head_dim = match file.optional_usize("head_dim")? {
            Some(head_dim) => head_dim,
            None => derive_head_dim(&source.path, "num_attention_heads", hidden_size, n_heads)?,
        };
        let (theta, scaling) = (file.rope_theta()?.unwrap_or(DEFAULT_THETA), json_scaling(&file)?);
        let config = Self {
            vocab_size: file.require_usize("vocab_size")?,
            hidden_size,
            ffn_size: file.require_usize("intermediate_size")?,
            n_layers: file.require_usize("num_hidden_layers")?,
            n_heads,
            n_kv_heads: file.optional_usize("num_key_value_heads")?.unwrap_or(n_heads),
            head_dim,
            context_length: file.require_usize("max_position_embeddings")?,
            norm_eps: file.require_f32("rms_norm_eps")?,
            rope: Rope { theta, head_dim, pairing: RopePairing::Half, scaling },
            attn_scale: attn_scale(head_dim),
            tied_output: file.optional_bool("tie_word_embeddings")?.unwrap_or(false),
        };
        config.check(&source.path)?;
        Ok(config)
    }

    /// What must hold of the numbers, whatever file they come from.
    fn check(&self, file: &Path) -> Result<()> {
        let sizes = [
            ("vocabulary size", self.vocab_size),
            ("hidden size", self.hidden_size),
            ("feed-forward size", self.ffn_size),
            ("number of layers", self.n_layers),
            ("number of query heads", self.n_heads),
            ("number of key-value heads", self.n_kv_heads),
            ("context length", self.context_length),
        ];
        if let Some((name, size)) = sizes.into_iter().find(|(_, size)| !(1..=MAX_SIZE).contains(size)) {
            return Err(Error::bad_key(file, name, size, format!("1 to {MAX_SIZE}")));
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            let expected = format!("a divisor of the {} query heads", self.n_heads);
            return Err(Error::bad_key(file, "number of key-value heads", self.n_kv_heads, expected));
        }
        if !(2..=MAX_SIZE).contains(&self.head_dim) || !self.head_dim.is_multiple_of(2) {
            return Err(Error::bad_key(
                file,
                "head size",
                self.head_dim,
                "an even number: RoPE rotates pairs",
            ));
        }
        if !(self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            return Err(Error::bad_key(file, "RMSNorm epsilon", self.norm_eps, "a small positive number"));
        }
        if !(self.rope.theta >= 1.0 && self.rope.theta.is_finite()) {
            return Err(Error::bad_key(file, "RoPE theta", self.rope.theta, "a finite number of 1 or more"));
        }
        Ok(())
    }

    /// Keys that say again what follows from others must agree with them.
    fn check_gguf_agrees(&self, file: &Gguf, architecture: &str) -> Result<()> {
        let again = [
            ("vocab_size", self.vocab_size, "the number of rows of token_embd.weight"),
            ("rope.dimension_count", self.head_dim, "the head size (partial rotation is not supported)"),
            ("attention.value_length", self.head_dim, "the head size of the keys"),
        ];
        for (name, expected, what) in again {
            let key = format!("{architecture}.{name}");
            match file.optional::<usize>(&key)? {
                Some(found) if found != expected => {
                    return Err(Error::bad_key(
                        file.tensors.path(),
                        &key,
                        found,
                        format!("{expected}, {what}"),
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// What both llama.cpp and transformers take where a file does not say.
const DEFAULT_THETA: f32 = 10_000.0;

/// No size of a real model comes near it; products of a few sizes up to it do not overflow.
const MAX_SIZE: usize = 1 << 24;

fn attn_scale(head_dim: usize) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

fn derive_head_dim(file: &Path, key: &str, hidden_size: usize, n_heads: usize) -> Result<usize> {
    if n_heads == 0 || !hidden_size.is_multiple_of(n_heads) {
        return Err(Error::bad_key(
            file,
            key,
            n_heads,
            format!("a divisor of the hidden size {hidden_size}"),
        ));
    }
    Ok(hidden_size / n_heads)
}

/// The vocabulary's size: the key for it is often absent, the table never.
fn embedding_rows(file: &Gguf, architecture: &'static str) -> Result<usize> {
    let (path, tensor) = (file.tensors.path().to_owned(), "token_embd.weight".to_owned());
    match file.tensors.get(&tensor) {
        Some(table) => Ok(table.shape[0]),
        None => Err(Error::MissingTensor { file: path, tensor, architecture }),
    }
}

/// GGUF files hold Llama 3's scaling worked out, as what to divide each pair's frequency by.
fn gguf_scaling(file: &Gguf, architecture: &'static str, head_dim: usize) -> Result<RopeScaling> {
    const FACTORS: &str = "rope_freqs.weight";
    if file.tensors.get(FACTORS).is_none() {
        return Ok(RopeScaling::None);
    }
    let factors = Weights::new(&file.tensors, architecture).vector(FACTORS, head_dim / 2)?;
    match factors.iter().find(|factor| !(**factor > 0.0 && factor.is_finite())) {
        Some(factor) => Err(Error::bad_key(file.tensors.path(), FACTORS, factor, "positive numbers")),
        None => Ok(RopeScaling::Factors(factors)),
    }
}

/// The scaling under `rope_parameters` (transformers 5.x) or `rope_scaling` (4.x).
fn json_scaling(file: &Config) -> Result<RopeScaling> {
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(scaling) = file.get(key) else { continue };
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Value::as_str);
        match kind {
            None | Some("default") => {}
            Some("llama3") => return llama3_scaling(file, key, scaling),
            Some(found) => {
                return Err(file.bad_key(
                    key,
                    found,
                    "\"default\" or \"llama3\" (other RoPE scaling is not supported)",
                ));
            }
        }
    }
    Ok(RopeScaling::None)
}

fn llama3_scaling(file: &Config, key: &str, scaling: &Value) -> Result<RopeScaling> {
    let number = |name: &str| {
        let number = scaling.get(name).and_then(Value::as_f64).filter(|number| *number > 0.0);
        let absent = || {
            file.bad_key(&format!("{key}.{name}"), "no positive number", "one, as llama3 scaling needs it")
        };
        number.map(|number| number as f32).ok_or_else(absent)
    };
    let (low_freq_factor, high_freq_factor) = (number("low_freq_factor")?, number("high_freq_factor")?);
    if low_freq_factor >= high_freq_factor {
        return Err(file.bad_key(
            &format!("{key}.low_freq_factor"),
            low_freq_factor,
            "less than high_freq_factor",
        ));
    }
    let (factor, original_context) = (number("factor")?, number("original_max_position_embeddings")?);
    Ok(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context })
}

/// Refuses what GGUF files of these architectures may ask for and the forward pass does not do.
fn refuse_gguf_extensions(file: &Gguf, architecture: &str) -> Result<()> {
    let path = file.tensors.path();
    let scaling = format!("{architecture}.rope.scaling.type");
    match file.optional::<&str>(&scaling)? {
        None | Some("none") => {}
        Some(found) => {
            return Err(Error::bad_key(path, &scaling, found, "none (RoPE scaling is not supported)"));
        }
    }
    let experts = format!("{architecture}.expert_count");
    match file.optional::<usize>(&experts)? {
        None | Some(0) => Ok(()),
        Some(found) => {
            Err(Error::bad_key(path, &experts, found, "0 (mixtures of experts are not supported)"))
        }
    }
}

/// Refuses what a `config.json` of these architectures may ask for and the forward pass does not do.
fn refuse_json_extensions(file: &Config) -> Result<()> {
    let no = [Value::from(false)];
    file.only("attention_bias", &no, "false (biases are not supported)")?;
    file.only("mlp_bias", &no, "false (biases are not supported)")?;
    file.only("use_sliding_window", &no, "false (sliding windows are not supported)")?;
    file.only("hidden_act", &[Value::from("silu")], "\"silu\"")?;
    file.only("quantization_config", &[], "absent (quantised checkpoints are not supported)")?;
    let layers = file.get("layer_types").and_then(Value::as_array);
    match layers.into_iter().flatten().find(|kind| **kind != "full_attention") {
        Some(kind) => Err(file.bad_key("layer_types", kind, "\"full_attention\" throughout")),
        None => Ok(()),
    }
}
