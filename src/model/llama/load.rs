//! Llama weights and configuration, from GGUF and from Hugging Face checkpoints.

use serde_json::Value;

use crate::error::Result;
use crate::format::{Gguf, Source, TensorFile};
use crate::model::llama::{ARCHITECTURE, Llama, LlamaConfig, LlamaLayer};
use crate::model::weights::Weights;

/// Reads a model from a GGUF file.
///
/// # Errors
/// If a metadata key or tensor is missing, has another type or shape than the architecture asks for, or asks
/// for something that the forward pass does not do.
pub fn from_gguf(file: &Gguf) -> Result<Llama> {
    Llama::load(LlamaConfig::from_gguf(file)?, &file.tensors, &GGUF_NAMES)
}

/// Reads a model from `config.json` and the tensors beside it.
///
/// # Errors
/// As [`from_gguf`].
pub fn from_hugging_face(config: &Source, json: &Value, tensors: &TensorFile) -> Result<Llama> {
    Llama::load(LlamaConfig::from_hugging_face(config, json)?, tensors, &HUGGING_FACE_NAMES)
}

/// What the same tensors are called in a file; `{}` stands for the layer.
struct LlamaNames {
    token_embd: &'static str,
    attn_norm: &'static str,
    attn_q: &'static str,
    attn_k: &'static str,
    attn_v: &'static str,
    attn_output: &'static str,
    ffn_norm: &'static str,
    ffn_gate: &'static str,
    ffn_up: &'static str,
    ffn_down: &'static str,
    output_norm: &'static str,
    output: &'static str,
    /// Tensors that some files carry and the forward pass computes itself.
    derived: &'static [&'static str],
}

/// The names of GGUF files.
const GGUF_NAMES: LlamaNames = LlamaNames {
    token_embd: "token_embd.weight",
    attn_norm: "blk.{}.attn_norm.weight",
    attn_q: "blk.{}.attn_q.weight",
    attn_k: "blk.{}.attn_k.weight",
    attn_v: "blk.{}.attn_v.weight",
    attn_output: "blk.{}.attn_output.weight",
    ffn_norm: "blk.{}.ffn_norm.weight",
    ffn_gate: "blk.{}.ffn_gate.weight",
    ffn_up: "blk.{}.ffn_up.weight",
    ffn_down: "blk.{}.ffn_down.weight",
    output_norm: "output_norm.weight",
    output: "output.weight",
    derived: &["blk.{}.attn_rot_embd"],
};

/// The names of Hugging Face checkpoints.
const HUGGING_FACE_NAMES: LlamaNames = LlamaNames {
    token_embd: "model.embed_tokens.weight",
    attn_norm: "model.layers.{}.input_layernorm.weight",
    attn_q: "model.layers.{}.self_attn.q_proj.weight",
    attn_k: "model.layers.{}.self_attn.k_proj.weight",
    attn_v: "model.layers.{}.self_attn.v_proj.weight",
    attn_output: "model.layers.{}.self_attn.o_proj.weight",
    ffn_norm: "model.layers.{}.post_attention_layernorm.weight",
    ffn_gate: "model.layers.{}.mlp.gate_proj.weight",
    ffn_up: "model.layers.{}.mlp.up_proj.weight",
    ffn_down: "model.layers.{}.mlp.down_proj.weight",
    output_norm: "model.norm.weight",
    output: "lm_head.weight",
    derived: &["model.layers.{}.self_attn.rotary_emb.inv_freq"],
};

impl Llama {
    fn load(config: LlamaConfig, file: &TensorFile, names: &LlamaNames) -> Result<Self> {
        let c = &config;
        let mut w = Weights::new(file, ARCHITECTURE);
        let token_embd = w.matrix(names.token_embd, c.vocab_size, c.hidden_size)?;
        let layers =
            (0..c.n_layers).map(|layer| LlamaLayer::load(c, &mut w, names, layer)).collect::<Result<_>>()?;
        let output_norm = w.vector(names.output_norm, c.hidden_size)?;
        let output = match c.tied_output {
            true => token_embd.clone(),
            false => w.matrix(names.output, c.vocab_size, c.hidden_size)?,
        };
        w.finish()?;
        Ok(Self { config, token_embd, layers, output_norm, output })
    }
}

impl LlamaLayer {
    fn load(c: &LlamaConfig, w: &mut Weights, names: &LlamaNames, layer: usize) -> Result<Self> {
        let name = |pattern: &str| pattern.replace("{}", &layer.to_string());
        let (q_width, kv_width) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        names.derived.iter().for_each(|pattern| w.skip(&name(pattern)));
        Ok(Self {
            attn_norm: w.vector(&name(names.attn_norm), c.hidden_size)?,
            attn_q: w.matrix(&name(names.attn_q), q_width, c.hidden_size)?,
            attn_k: w.matrix(&name(names.attn_k), kv_width, c.hidden_size)?,
            attn_v: w.matrix(&name(names.attn_v), kv_width, c.hidden_size)?,
            attn_output: w.matrix(&name(names.attn_output), c.hidden_size, q_width)?,
            ffn_norm: w.vector(&name(names.ffn_norm), c.hidden_size)?,
            ffn_gate: w.matrix(&name(names.ffn_gate), c.ffn_size, c.hidden_size)?,
            ffn_up: w.matrix(&name(names.ffn_up), c.ffn_size, c.hidden_size)?,
            ffn_down: w.matrix(&name(names.ffn_down), c.hidden_size, c.ffn_size)?,
        })
    }
}
