//! Loads the weights of GPT-2 from GGUF and Hugging Face checkpoints.

use crate::error::{ModelError, Result};
use crate::format::{Gguf, TensorFile};
use crate::model::gpt2::{AffineMatrix, Gpt2, Gpt2Block, Gpt2Config};
use crate::model::json::Config;
use crate::model::weights::Weights;
use crate::ops::norm::{Gain, LayerNorm};
use crate::weight::Matrix;

const ARCHITECTURE: &str = "gpt2";

/// Naming scheme of a file's tensors. This module refers to tensors by their GGUF names.
#[derive(Clone, Copy)]
enum Gpt2Names {
    Gguf,
    /// Hugging Face names. Files of the model without a head have no prefix; saved language models have one.
    HuggingFace {
        prefix: &'static str,
    },
}

/// Hugging Face names of the tensors.
const HUGGING_FACE: &[(&str, &str)] = &[
    ("token_embd", "wte"),
    ("position_embd", "wpe"),
    ("attn_norm", "ln_1"),
    ("attn_qkv", "attn.c_attn"),
    ("attn_output", "attn.c_proj"),
    ("ffn_norm", "ln_2"),
    ("ffn_up", "mlp.c_fc"),
    ("ffn_down", "mlp.c_proj"),
    ("output_norm", "ln_f"),
];

impl Gpt2Names {
    fn hugging_face(file: &TensorFile) -> Self {
        let is_bare = file.get("wte.weight").is_some();
        Gpt2Names::HuggingFace { prefix: if is_bare { "" } else { "transformer." } }
    }

    fn of(self, name: &str) -> String {
        match self {
            Gpt2Names::Gguf => name.to_owned(),
            Gpt2Names::HuggingFace { prefix } => format!("{prefix}{}", hugging_face(name)),
        }
    }

    fn of_layer(self, name: &str, layer: usize) -> String {
        match self {
            Gpt2Names::Gguf => format!("blk.{layer}.{name}"),
            Gpt2Names::HuggingFace { prefix } => format!("{prefix}h.{layer}.{}", hugging_face(name)),
        }
    }

    fn output(self) -> &'static str {
        match self {
            Gpt2Names::Gguf => "output.weight",
            Gpt2Names::HuggingFace { .. } => "lm_head.weight",
        }
    }

    /// Returns true for the causal mask, which old checkpoints store as a buffer.
    fn is_beside(self, name: &str) -> bool {
        matches!(self, Gpt2Names::HuggingFace { .. })
            && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"))
    }
}

fn hugging_face(name: &str) -> &'static str {
    let (_, found) =
        HUGGING_FACE.iter().find(|(gguf, _)| *gguf == name).expect("HUGGING_FACE lists every GGUF name");
    found
}

/// Weight file of GPT-2 that is being read.
struct Gpt2Weights<'a, 'f> {
    weights: Weights<'f>,
    names: Gpt2Names,
    config: &'a Gpt2Config,
}

impl Gpt2Weights<'_, '_> {
    fn norm(&mut self, name: &str) -> Result<LayerNorm> {
        let width = self.config.hidden_size;
        Ok(LayerNorm {
            weight: self.weights.vector(&format!("{name}.weight"), width)?,
            bias: self.weights.vector(&format!("{name}.bias"), width)?,
            eps: self.config.norm_eps,
            gain: Gain::Weight,
        })
    }

    /// Loads a matrix with its bias. transformers' `Conv1D` stores inputs first, `y = x · W + b`; GGUF stores outputs
    /// first.
    fn affine(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<AffineMatrix> {
        let weight = format!("{name}.weight");
        let weight = match self.names {
            Gpt2Names::Gguf => self.weights.matrix(&weight, outputs, inputs)?,
            Gpt2Names::HuggingFace { .. } => self.weights.transposed(&weight, outputs, inputs)?,
        };
        Ok(AffineMatrix { weight, bias: self.weights.vector(&format!("{name}.bias"), outputs)? })
    }

    fn block(&mut self, layer: usize) -> Result<Gpt2Block> {
        let (names, width, ffn_size) = (self.names, self.config.hidden_size, self.config.ffn_size);
        let name = |name| names.of_layer(name, layer);
        let qkv = self.affine(&name("attn_qkv"), 3 * width, width)?;
        let third = |index: usize| AffineMatrix {
            weight: qkv.weight.rows_from(index * width, width),
            bias: qkv.bias[index * width..][..width].to_vec(),
        };
        Ok(Gpt2Block {
            attn_norm: self.norm(&name("attn_norm"))?,
            q: third(0),
            k: third(1),
            v: third(2),
            attn_output: self.affine(&name("attn_output"), width, width)?,
            ffn_norm: self.norm(&name("ffn_norm"))?,
            ffn_up: self.affine(&name("ffn_up"), ffn_size, width)?,
            ffn_down: self.affine(&name("ffn_down"), width, ffn_size)?,
        })
    }

    fn table(&mut self, name: &str, rows: usize) -> Result<Matrix> {
        self.weights.matrix(&format!("{}.weight", self.names.of(name)), rows, self.config.hidden_size)
    }

    /// Returns the vocabulary projection: the embedding table, or the head of a GGUF file that stores one.
    fn output(&mut self, token_embd: &Matrix) -> Result<Matrix> {
        let name = self.names.output();
        match self.names {
            Gpt2Names::Gguf if self.weights.has(name) => {
                self.weights.matrix(name, token_embd.rows, token_embd.cols)
            }
            _ => self.weights.tied(name, token_embd),
        }
    }
}

impl Gpt2 {
    /// Reads a model from a GGUF file.
    ///
    /// # Errors
    /// If a metadata key or tensor is missing, or has another type or shape than the architecture requires.
    pub fn from_gguf(file: &Gguf) -> Result<Self> {
        let (path, tensor) = (file.tensors.path().to_owned(), "token_embd.weight".to_owned());
        let Some(table) = file.tensors.get(&tensor) else {
            return Err(ModelError::MissingTensor { file: path, tensor, architecture: ARCHITECTURE }.into());
        };
        let vocab_size = table.shape.first().copied().unwrap_or(0);
        Self::load(Gpt2Config::from_gguf(file, vocab_size)?, &file.tensors, Gpt2Names::Gguf)
    }

    /// Reads a model from `config.json` and its tensors.
    ///
    /// # Errors
    /// See [`Gpt2::from_gguf`]; also if the configuration asks for something that the forward pass does not support.
    pub fn from_hugging_face(config: &Config, tensors: &TensorFile) -> Result<Self> {
        Self::load(Gpt2Config::from_hugging_face(config)?, tensors, Gpt2Names::hugging_face(tensors))
    }

    fn load(config: Gpt2Config, file: &TensorFile, names: Gpt2Names) -> Result<Self> {
        let mut r = Gpt2Weights { weights: Weights::new(file, ARCHITECTURE), names, config: &config };
        let token_embd = r.table("token_embd", config.vocab_size)?;
        let position_embd = r.table("position_embd", config.context_length)?;
        let layers = (0..config.n_layers).map(|layer| r.block(layer)).collect::<Result<_>>()?;
        let output_norm = r.norm(&names.of("output_norm"))?;
        let output = r.output(&token_embd)?;
        r.weights.finish(|name| names.is_beside(name))?;
        Ok(Self { config, token_embd, position_embd, layers, output_norm, output })
    }
}
