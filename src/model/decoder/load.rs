//! Weights and configuration of a decoder, from GGUF and from Hugging Face checkpoints.

use serde_json::Value;

use crate::error::Result;
use crate::format::{Gguf, Source, TensorFile};
use crate::model::decoder::{Block, Decoder, DecoderConfig, FeedForward, Projections};
use crate::model::weights::Weights;
use crate::weight::Matrix;

/// How a file names tensors. Here they are called what GGUF calls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Gguf,
    HuggingFace,
}

/// What Hugging Face checkpoints call the tensors of a layer.
const HUGGING_FACE: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

impl Names {
    fn of_layer(self, name: &str, layer: usize) -> String {
        match self {
            Names::Gguf => format!("blk.{layer}.{name}.weight"),
            Names::HuggingFace => {
                let (_, theirs) =
                    HUGGING_FACE.iter().find(|(ours, _)| *ours == name).expect("every name is listed");
                format!("model.layers.{layer}.{theirs}.weight")
            }
        }
    }

    fn token_embd(self) -> &'static str {
        match self {
            Names::Gguf => "token_embd.weight",
            Names::HuggingFace => "model.embed_tokens.weight",
        }
    }

    fn output_norm(self) -> &'static str {
        match self {
            Names::Gguf => "output_norm.weight",
            Names::HuggingFace => "model.norm.weight",
        }
    }

    fn output(self) -> &'static str {
        match self {
            Names::Gguf => "output.weight",
            Names::HuggingFace => "lm_head.weight",
        }
    }

    /// What some files carry although it follows from the configuration, or was read with it.
    fn derived(self, layer: usize) -> [String; 2] {
        match self {
            Names::Gguf => ["rope_freqs.weight".into(), format!("blk.{layer}.attn_rot_embd")],
            Names::HuggingFace => [
                "model.rotary_emb.inv_freq".into(),
                format!("model.layers.{layer}.self_attn.rotary_emb.inv_freq"),
            ],
        }
    }
}

/// The weights of one layer of a file.
pub struct LayerWeights<'a, 'f> {
    weights: &'a mut Weights<'f>,
    names: Names,
    layer: usize,
}

impl LayerWeights<'_, '_> {
    /// A vector by its GGUF name.
    ///
    /// # Errors
    /// If it is missing, of another shape, or of a block type.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.weights.vector(&self.names.of_layer(name, self.layer), len)
    }

    /// A matrix by its GGUF name.
    ///
    /// # Errors
    /// If it is missing, of another shape, or its rows end inside a block.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        self.weights.matrix(&self.names.of_layer(name, self.layer), rows, cols)
    }
}

impl Projections {
    /// Reads the matrices of a layer's attention.
    ///
    /// # Errors
    /// If one is missing, of another shape, or of a type that cannot be used.
    pub fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let (q_width, kv_width) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        Ok(Self {
            q: w.matrix("attn_q", q_width, c.hidden_size)?,
            k: w.matrix("attn_k", kv_width, c.hidden_size)?,
            v: w.matrix("attn_v", kv_width, c.hidden_size)?,
            output: w.matrix("attn_output", c.hidden_size, q_width)?,
        })
    }
}

impl FeedForward {
    /// Reads the weights of a layer's second half.
    ///
    /// # Errors
    /// If one is missing, of another shape, or of a type that cannot be used.
    pub fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        Ok(Self {
            norm: w.vector("ffn_norm", c.hidden_size)?,
            gate: w.matrix("ffn_gate", c.ffn_size, c.hidden_size)?,
            up: w.matrix("ffn_up", c.ffn_size, c.hidden_size)?,
            down: w.matrix("ffn_down", c.hidden_size, c.ffn_size)?,
        })
    }
}

impl<B: Block> Decoder<B> {
    /// Reads a model from a GGUF file.
    ///
    /// # Errors
    /// If a metadata key or tensor is missing, has another type or shape than the architecture asks for, or asks
    /// for something that the forward pass does not do.
    pub fn from_gguf(file: &Gguf) -> Result<Self> {
        Self::load(
            DecoderConfig::from_gguf(file, B::ARCHITECTURE, B::GGUF_PAIRING)?,
            &file.tensors,
            Names::Gguf,
        )
    }

    /// Reads a model from `config.json` and the tensors beside it.
    ///
    /// # Errors
    /// As [`Decoder::from_gguf`].
    pub fn from_hugging_face(config: &Source, json: &Value, tensors: &TensorFile) -> Result<Self> {
        Self::load(DecoderConfig::from_hugging_face(config, json)?, tensors, Names::HuggingFace)
    }

    fn load(config: DecoderConfig, file: &TensorFile, names: Names) -> Result<Self> {
        let c = &config;
        let mut w = Weights::new(file, B::ARCHITECTURE);
        let token_embd = w.matrix(names.token_embd(), c.vocab_size, c.hidden_size)?;
        let mut layers = Vec::new();
        for layer in 0..c.n_layers {
            names.derived(layer).iter().for_each(|name| w.skip(name));
            layers.push(B::load(c, &mut LayerWeights { weights: &mut w, names, layer })?);
        }
        let output_norm = w.vector(names.output_norm(), c.hidden_size)?;
        let output = match c.tied_output {
            true => token_embd.clone(),
            false => w.matrix(names.output(), c.vocab_size, c.hidden_size)?,
        };
        w.finish()?;
        Ok(Self { config, token_embd, layers, output_norm, output })
    }
}
