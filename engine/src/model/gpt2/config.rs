//! Sizes and constants of GPT-2, from GGUF metadata and from `config.json`.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::dequantisation::settings_files;
use crate::model::json::Config;
use crate::model::size;
use crate::ops::activation::Activation;
use crate::tensor::Tensor;

/// Sizes and constants of GPT-2.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt2Config {
    /// Size of the vocabulary, V.
    pub(crate) vocab_size: usize,
    /// Width of the residual stream, d.
    pub(crate) hidden_size: usize,
    /// Width of the feed-forward block, F. Four times the hidden size, unless stated.
    pub(crate) ffn_size: usize,
    /// Number of transformer blocks.
    pub(crate) n_layers: usize,
    /// Number of heads, H.
    pub(crate) n_heads: usize,
    /// Number of position embeddings.
    pub(crate) context_length: usize,
    /// Epsilon, added to the variance in every LayerNorm.
    pub(crate) norm_eps: f32,
    /// The activation function of the feed-forward block.
    pub activation: Activation,
}

/// Known values of `activation_function`.
const ACTIVATIONS: [(&str, Activation); 3] = [
    ("gelu_new", Activation::GeluNew),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu", Activation::GeluErf),
];

impl Gpt2Config {
    /// Returns the number of values in one head, D.
    pub(crate) fn head_dim(&self) -> usize {
        self.hidden_size / self.n_heads
    }

    /// Reshapes `[T, d]` to `[T, H, D]`.
    pub(super) fn heads(&self, x: Tensor) -> Tensor {
        let shape = [x.rows(), self.n_heads, self.head_dim()];
        x.reshaped(&shape)
    }

    /// Reads the metadata of a GGUF file. GGUF does not state the form of GELU; the released model uses the tanh form.
    pub(super) fn from_gguf(file: &Gguf, vocab_size: usize) -> Result<Self> {
        let config = Self {
            vocab_size,
            hidden_size: file.require("gpt2.embedding_length")?,
            ffn_size: file.require("gpt2.feed_forward_length")?,
            n_layers: file.require("gpt2.block_count")?,
            n_heads: file.require("gpt2.attention.head_count")?,
            context_length: file.require("gpt2.context_length")?,
            norm_eps: file.require("gpt2.attention.layer_norm_epsilon")?,
            activation: Activation::GeluNew,
        };
        config.checked(file.tensors.path())
    }

    /// Reads a `config.json`; missing keys have the defaults of transformers' `GPT2Config`.
    pub(super) fn from_hugging_face(file: &Config) -> Result<Self> {
        refuse_extensions(file)?;
        let hidden_size = file.require_usize("n_embd")?;
        let config = Self {
            vocab_size: file.require_usize("vocab_size")?,
            hidden_size,
            ffn_size: file.optional_usize("n_inner")?.unwrap_or(hidden_size.saturating_mul(4)),
            n_layers: file.require_usize("n_layer")?,
            n_heads: file.require_usize("n_head")?,
            context_length: file.require_usize("n_positions")?,
            norm_eps: file.optional_f32("layer_norm_epsilon")?.unwrap_or(1e-5),
            activation: activation(file)?,
        };
        config.checked(file.path())
    }

    fn checked(self, file: &Path) -> Result<Self> {
        size::check(
            file,
            &[
                ("vocabulary size", self.vocab_size),
                ("hidden size", self.hidden_size),
                ("feed-forward size", self.ffn_size),
                (size::LAYERS, self.n_layers),
                ("number of heads", self.n_heads),
                ("context length", self.context_length),
            ],
        )?;
        if !self.hidden_size.is_multiple_of(self.n_heads) {
            let expected = format!("a divisor of the hidden size {}", self.hidden_size);
            return Err(Error::bad_key(file, "number of heads", self.n_heads, expected));
        }
        if !(self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            return Err(Error::bad_key(file, "LayerNorm epsilon", self.norm_eps, "a small positive number"));
        }
        Ok(self)
    }
}

fn activation(file: &Config) -> Result<Activation> {
    const KEY: &str = "activation_function";
    let Some(name) = file.optional_str(KEY)? else { return Ok(Activation::GeluNew) };
    let known = ACTIVATIONS.iter().find(|(known, _)| *known == name);
    known.map(|(_, activation)| *activation).ok_or_else(|| {
        file.bad_key(KEY, name, format!("one of {}", ACTIVATIONS.map(|(known, _)| known).join(", ")))
    })
}

/// Returns an error for `config.json` options that the forward pass does not support.
fn refuse_extensions(file: &Config) -> Result<()> {
    let (no, yes) = ([Value::from(false)], [Value::from(true)]);
    file.only("scale_attn_weights", &yes, "true (unscaled attention is not supported)")?;
    file.only("scale_attn_by_inverse_layer_idx", &no, "false (scaling by layer is not supported)")?;
    file.only("reorder_and_upcast_attn", &no, "false (reordered attention is not supported)")?;
    file.only("add_cross_attention", &no, "false (cross attention is not supported)")?;
    file.only("tie_word_embeddings", &yes, "true (GPT-2's head is its embedding table)")?;
    let absent = "absent (quantised checkpoints are not supported)";
    settings_files::FILES.iter().try_for_each(|name| file.only(name, &[], absent))?;
    file.only("quantization_config", &[], absent)
}
