//! Loads weights and configuration of a decoder from GGUF, llama2.c and Hugging Face checkpoints.

use crate::error::{KeyError, Result};
use crate::format::{Gguf, Llama2cFile, TensorFile};
use crate::model::decoder::config_gguf::LONG_FACTORS;
use crate::model::decoder::{
    Decoder, DecoderBlock, DecoderConfig, ExpertsConfig, FeedForward, ProjectionBiases, Projections,
};
use crate::model::dequantisation::Dequantisation;
use crate::model::json::Config;
use crate::model::quantisation::LinearClass;
use crate::model::weights::Weights;
use crate::ops::norm::RmsNorm;
use crate::ops::rope::RopeScaling;
use crate::weight::{Factor, Matrix};

/// Naming scheme of a file's tensors. This module refers to tensors by their GGUF names.
#[derive(Clone, Copy)]
enum DecoderNames<'a> {
    Gguf,
    HuggingFace {
        /// Prefix of the decoder's tensor names.
        prefix: &'static str,
        /// Names of a layer's tensors that differ from Llama's.
        layer: &'a [(&'a str, &'a str)],
    },
}

/// Hugging Face names of a layer's tensors in Llama checkpoints.
const LAYER: &[(&str, &str)] = &[
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
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];

/// Prefixes of a decoder's tensor names: a text model, the text part of a multimodal model in transformers 4.x and
/// 5.x, or a text model that was saved without its head.
const PREFIXES: [&str; 4] = ["model.", "language_model.model.", "model.language_model.", ""];

/// Prefixes of the non-text parts of a model.
const OTHER_PARTS: [&str; 4] =
    ["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."];

impl<'a> DecoderNames<'a> {
    fn hugging_face(file: &TensorFile, layer: &'a [(&'a str, &'a str)]) -> Self {
        let has = |prefix: &&str| file.get(&format!("{prefix}embed_tokens.weight")).is_some();
        DecoderNames::HuggingFace { prefix: PREFIXES.into_iter().find(has).unwrap_or(PREFIXES[0]), layer }
    }

    fn of_layer(self, name: &str, index: usize) -> String {
        match self {
            DecoderNames::Gguf => format!("blk.{index}.{name}.weight"),
            DecoderNames::HuggingFace { prefix, layer } => {
                let mut names = layer.iter().chain(LAYER);
                let (_, hugging_face) = names.find(|(gguf, _)| *gguf == name).expect("every name is listed");
                format!("{prefix}layers.{index}.{hugging_face}.weight")
            }
        }
    }

    /// Returns the name of a matrix's bias.
    fn bias_of_layer(self, name: &str, index: usize) -> String {
        let matrix = self.of_layer(name, index);
        format!("{}bias", matrix.strip_suffix("weight").expect("names of matrices end in weight"))
    }

    /// Returns the name of a matrix's factor.
    fn scale_of_layer(self, name: &str, index: usize) -> String {
        let matrix = self.of_layer(name, index);
        match (self, matrix.strip_suffix("weight")) {
            (DecoderNames::Gguf, Some(name)) => format!("{name}scale"),
            _ => format!("{matrix}_scale"),
        }
    }

    fn token_embd(self) -> String {
        match self {
            DecoderNames::Gguf => "token_embd.weight".into(),
            DecoderNames::HuggingFace { prefix, .. } => format!("{prefix}embed_tokens.weight"),
        }
    }

    fn output_norm(self) -> String {
        match self {
            DecoderNames::Gguf => "output_norm.weight".into(),
            DecoderNames::HuggingFace { prefix, .. } => format!("{prefix}norm.weight"),
        }
    }

    fn output(self) -> &'static str {
        match self {
            DecoderNames::Gguf => "output.weight",
            DecoderNames::HuggingFace { prefix: "language_model.model.", .. } => {
                "language_model.lm_head.weight"
            }
            DecoderNames::HuggingFace { .. } => "lm_head.weight",
        }
    }

    /// Returns true for tensors that are not needed: derived tensors, and non-text parts of the model.
    fn is_beside(self, name: &str) -> bool {
        match self {
            DecoderNames::Gguf => {
                matches!(name, "rope_freqs.weight" | "rope_cos" | "rope_sin")
                    || name.ends_with(".attn_rot_embd")
            }
            DecoderNames::HuggingFace { prefix, .. } => {
                let is_other = |part: &&str| name.starts_with(part);
                name.ends_with("rotary_emb.inv_freq")
                    || (prefix != PREFIXES[0] && OTHER_PARTS.iter().any(is_other))
            }
        }
    }
}

/// Weights of one layer of a file.
pub struct LayerWeights<'a, 'f> {
    weights: &'a mut Weights<'f>,
    names: DecoderNames<'a>,
    config: &'a DecoderConfig,
    layer: usize,
}

impl LayerWeights<'_, '_> {
    /// Loads the norm of rows of `len` values, by its GGUF name.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a block type.
    pub fn norm(&mut self, name: &str, len: usize) -> Result<RmsNorm> {
        let weight = self.weights.vector(&self.names.of_layer(name, self.layer), len)?;
        Ok(self.config.norm(weight))
    }

    /// Loads the bias of a matrix with `len` rows, by the matrix's GGUF name.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a block type.
    pub fn bias(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.weights.vector(&self.names.bias_of_layer(name, self.layer), len)
    }

    /// Loads the bias of a matrix with `len` rows, if the model has it.
    ///
    /// # Errors
    /// See [`LayerWeights::bias`].
    fn bias_if(&mut self, is_there: bool, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        is_there.then(|| self.bias(name, len)).transpose()
    }

    /// Loads a matrix by its GGUF name.
    ///
    /// # Errors
    /// If it is missing, has another shape, or its rows end inside a block.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        self.weights.matrix(&self.names.of_layer(name, self.layer), rows, cols)
    }

    /// Loads a matrix of one row by its GGUF name: a vector in GGUF files.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`].
    pub fn row(&mut self, name: &str, cols: usize) -> Result<Matrix> {
        let tensor = self.names.of_layer(name, self.layer);
        match self.names {
            DecoderNames::Gguf => self.weights.row(&tensor, cols),
            DecoderNames::HuggingFace { .. } => self.weights.matrix(&tensor, 1, cols),
        }
    }

    /// Returns the expert settings of the configuration.
    ///
    /// # Errors
    /// If the model has no experts.
    pub fn experts(&self) -> Result<ExpertsConfig> {
        let hint = "every file of this architecture must state this key".to_owned();
        let (file, key) = (self.weights.path().to_owned(), "number of experts".to_owned());
        self.config.experts.ok_or(KeyError::Missing { file, key, hint }.into())
    }

    /// Loads the matrices of all experts by their GGUF name: one tensor in GGUF, one tensor for each expert in Hugging
    /// Face checkpoints.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`].
    pub fn of_experts(&mut self, name: &str, count: usize, rows: usize, cols: usize) -> Result<Vec<Matrix>> {
        let tensor = self.names.of_layer(name, self.layer);
        match self.names {
            DecoderNames::Gguf => self.weights.stacked(&tensor, count, rows, cols),
            DecoderNames::HuggingFace { .. } => (0..count)
                .map(|expert| self.weights.matrix(&tensor.replace("{}", &expert.to_string()), rows, cols))
                .collect(),
        }
    }

    /// Loads a BitNet matrix and its factor by the GGUF name. The factor is optional in GGUF files, and present in
    /// Hugging Face checkpoints with BitNet's kind of linear layers.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`]; also if a code is invalid, or the factor is not one finite number.
    pub fn ternary(&mut self, name: &str, rows: usize, cols: usize) -> Result<(Matrix, Option<Factor>)> {
        let (matrix, scale) =
            (self.names.of_layer(name, self.layer), self.names.scale_of_layer(name, self.layer));
        let Some(class) = self.config.linear_class else {
            let matrix = self.weights.matrix(&matrix, rows, cols)?;
            let factor = self.weights.has(&scale).then(|| self.weights.factor(&scale)).transpose()?;
            return Ok((matrix, factor.map(Factor::Multiplies)));
        };
        if class == LinearClass::Online {
            let (matrix, factor) = self.weights.quantised(&matrix, rows, cols)?;
            return Ok((matrix, Some(factor)));
        }
        let matrix = self.weights.maybe_packed(&matrix, rows, cols)?;
        Ok((matrix, class.factor(self.weights.factor(&scale)?)))
    }
}

impl LayerWeights<'_, '_> {
    /// Loads several matrices that are fused to one tensor, by its GGUF name and with the number of rows of each.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`].
    pub fn fused<const N: usize>(
        &mut self,
        name: &str,
        rows: [usize; N],
        cols: usize,
    ) -> Result<[Matrix; N]> {
        let whole = self.matrix(name, rows.iter().sum(), cols)?;
        let first = |part: usize| rows[..part].iter().sum();
        Ok(std::array::from_fn(|part| whole.rows_from(first(part), rows[part])))
    }
}

impl Projections {
    /// Reads the matrices of a layer's attention.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let (q_width, kv_width) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        Ok(Self {
            q: w.matrix("attn_q", q_width, c.hidden_size)?,
            k: w.matrix("attn_k", kv_width, c.hidden_size)?,
            v: w.matrix("attn_v", kv_width, c.hidden_size)?,
            output: w.matrix("attn_output", c.hidden_size, q_width)?,
            biases: ProjectionBiases {
                q: w.bias_if(c.biases.qkv, "attn_q", q_width)?,
                k: w.bias_if(c.biases.qkv, "attn_k", kv_width)?,
                v: w.bias_if(c.biases.qkv, "attn_v", kv_width)?,
                output: w.bias_if(c.biases.output, "attn_output", c.hidden_size)?,
            },
        })
    }
}

impl FeedForward {
    /// Loads the weights of a layer's feed-forward half.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        Ok(Self { norm: Some(w.norm("ffn_norm", c.hidden_size)?), ..Self::without_norm(c, w)? })
    }

    /// Loads the block without a norm before it.
    ///
    /// # Errors
    /// See [`FeedForward::load`].
    pub fn without_norm(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        Ok(Self {
            norm: None,
            gate: w.matrix("ffn_gate", c.ffn_size, c.hidden_size)?,
            up: w.matrix("ffn_up", c.ffn_size, c.hidden_size)?,
            down: w.matrix("ffn_down", c.hidden_size, c.ffn_size)?,
            biases: match c.biases.mlp {
                true => Some([
                    w.bias("ffn_gate", c.ffn_size)?,
                    w.bias("ffn_up", c.ffn_size)?,
                    w.bias("ffn_down", c.hidden_size)?,
                ]),
                false => None,
            },
        })
    }
}

impl<B: DecoderBlock> Decoder<B> {
    /// Reads a model from a GGUF file.
    ///
    /// # Errors
    /// If a metadata key or tensor is missing, has another type or shape than the architecture requires, or asks for
    /// something that the forward pass does not support.
    pub fn from_gguf(file: &Gguf) -> Result<Self> {
        Self::load(DecoderConfig::from_gguf(file, &B::FAMILY)?, &file.tensors, DecoderNames::Gguf)
    }

    /// Reads a model from `config.json` and its tensors.
    ///
    /// # Errors
    /// See [`Decoder::from_gguf`].
    pub fn from_hugging_face(config: &Config, tensors: &TensorFile) -> Result<Self> {
        let settings = DecoderConfig::from_hugging_face(config, &B::FAMILY)?;
        let decoded = match Dequantisation::read(config)? {
            Some(quantised) => {
                quantised.check_activations()?;
                Some(quantised.decoded(tensors)?)
            }
            None => None,
        };
        let tensors = decoded.as_ref().unwrap_or(tensors);
        Self::load(settings, tensors, DecoderNames::hugging_face(tensors, B::FAMILY.layer_names))
    }

    /// Reads a model from a llama2.c file, whose tensors have GGUF names.
    ///
    /// # Errors
    /// If a size is invalid, or a scale is not a number.
    pub fn from_llama2c(file: &Llama2cFile) -> Result<Self> {
        Self::load(DecoderConfig::from_llama2c(file, &B::FAMILY)?, &file.tensors, DecoderNames::Gguf)
    }

    fn load(config: DecoderConfig, file: &TensorFile, names: DecoderNames) -> Result<Self> {
        let c = &config;
        let long = matches!(c.rope.scaling, RopeScaling::Long { .. });
        let mut w = Weights::new(file, B::FAMILY.architecture);
        let token_embd = w.matrix(&names.token_embd(), c.vocab_size, c.hidden_size)?;
        let layer = |layer| B::load(c, &mut LayerWeights { weights: &mut w, names, config: c, layer });
        let layers = (0..c.n_layers).map(layer).collect::<Result<Vec<_>>>()?;
        let output_norm = c.norm(w.vector(&names.output_norm(), c.hidden_size)?);
        let output = match c.tied_output {
            true => w.tied(names.output(), &token_embd)?,
            false => w.matrix(names.output(), c.vocab_size, c.hidden_size)?,
        };
        w.finish(|name| names.is_beside(name) || long && LONG_FACTORS.contains(&name))?;
        Ok(Self { config, token_embd, layers, output_norm, output })
    }
}
