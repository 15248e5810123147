//! Loads weights and configuration of a decoder from GGUF, llama2.c and Hugging Face checkpoints.

use crate::error::Result;
use crate::format::{Gguf, Llama2cFile, TensorFile};
use crate::model::decoder::cache_scales;
use crate::model::decoder::config_gguf::LONG_FACTORS;
use crate::model::decoder::delta::grouped;
use crate::model::decoder::layer_embeddings::LayerEmbeddings;
use crate::model::decoder::names::DecoderNames;
use crate::model::decoder::{
    Decoder, DecoderBlock, DecoderConfig, Family, FeedForward, FfnShape, Norm, NormKind, Positions,
    Projection, Projections, RecurrentMixer, StreamProjections,
};
use crate::model::dequantisation::{Dequantisation, settings_files};
use crate::model::json::Config;
use crate::model::quantisation::LinearClass;
use crate::model::weights::Weights;
use crate::ops::alibi::slopes;
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::RopeScaling;
use crate::ops::short_convolution::ShortConvolution;
use crate::weight::{Factor, Matrix};

/// Weights of one layer in a file.
pub struct LayerWeights<'a, 'f> {
    pub(super) weights: &'a mut Weights<'f>,
    pub(super) names: DecoderNames<'a>,
    pub(super) config: &'a DecoderConfig,
    pub(super) layer: usize,
}

impl LayerWeights<'_, '_> {
    /// Loads the norms of queries and keys. `lens` are the lengths of their rows.
    ///
    /// # Errors
    /// See [`LayerWeights::norm`].
    pub(super) fn qk_norms(&mut self, lens: [usize; 2]) -> Result<[RmsNorm; 2]> {
        Ok([self.norm("attn_q_norm", lens[0])?, self.norm("attn_k_norm", lens[1])?])
    }

    /// Loads the RMSNorm of rows of `len` values, by its GGUF name.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a block type.
    pub(crate) fn norm(&mut self, name: &str, len: usize) -> Result<RmsNorm> {
        let weight = self.weights.vector(&self.names.of_layer(name, self.layer), len)?;
        Ok(self.config.rms_norm(weight))
    }

    /// Loads the norm of rows of `len` values, by its GGUF name. The architecture decides the kind of norm.
    ///
    /// # Errors
    /// See [`LayerWeights::norm`].
    pub(crate) fn any_norm(&mut self, name: &str, len: usize) -> Result<Norm> {
        load_norm(self.weights, self.config, &self.names.of_layer(name, self.layer), len)
    }

    /// Loads the bias of a matrix with `len` rows, by the matrix's GGUF name.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a block type.
    pub(crate) fn bias(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.weights.vector(&self.names.bias_of_layer(name, self.layer), len)
    }

    /// Loads a matrix by its GGUF name, with its bias if the model has one.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`] and [`LayerWeights::bias`].
    pub(crate) fn projection(
        &mut self,
        name: &str,
        has_bias: bool,
        rows: usize,
        cols: usize,
    ) -> Result<Projection> {
        let weight = self.matrix(name, rows, cols)?;
        // llama.cpp scales the sum with the bias, or refuses it.
        if has_bias && weight.scale() != 1.0 && name.starts_with("ffn_") {
            return Err(self.weights.scaled_bias(&self.names.of_layer(name, self.layer), weight.dtype));
        }
        let bias = has_bias.then(|| self.bias(name, rows)).transpose()?;
        let input_factors = self.weights.input_factors(&self.names.of_layer(name, self.layer), cols)?;
        Ok(Projection { weight, bias, input_factors })
    }

    /// Loads a matrix by its GGUF name.
    ///
    /// # Errors
    /// If it is missing, has another shape, or its rows end inside a block.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        self.weights.matrix(&self.names.of_layer(name, self.layer), rows, cols)
    }

    /// Returns the scales of the FP8 cache that stores a matrix's products. The matrix is given by its GGUF name.
    ///
    /// # Errors
    /// If a scale is not a positive number.
    pub(crate) fn cache_scales(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        self.weights.cache_scales(&self.names.of_layer(name, self.layer))
    }

    /// Loads a matrix of one row by its GGUF name: a vector in GGUF files.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`].
    pub(crate) fn row(&mut self, name: &str, cols: usize) -> Result<Matrix> {
        let tensor = self.names.of_layer(name, self.layer);
        match self.names {
            DecoderNames::Gguf { .. } => self.weights.row(&tensor, cols),
            DecoderNames::HuggingFace { .. } => self.weights.matrix(&tensor, 1, cols),
        }
    }

    /// Loads a vector as a matrix of one row, by its GGUF name.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`].
    pub(crate) fn factors(&mut self, name: &str, cols: usize) -> Result<Matrix> {
        self.weights.row(&self.names.of_layer(name, self.layer), cols)
    }

    /// Loads a vector by its GGUF name.
    ///
    /// # Errors
    /// See [`LayerWeights::norm`].
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.weights.vector(&self.names.of_layer(name, self.layer), len)
    }

    /// Loads a BitNet matrix and its factor by the GGUF name. The factor is optional in GGUF files. Hugging Face
    /// checkpoints with BitNet's linear layers must have it.
    ///
    /// # Errors
    /// See [`LayerWeights::matrix`]; also if a code is invalid, or the factor is not one finite number.
    pub(crate) fn ternary(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<(Matrix, Option<Factor>)> {
        let (matrix, scale) =
            (self.names.of_layer(name, self.layer), self.names.scale_of_layer(name, self.layer));
        let Some(class) = self.config.linear_class else {
            let matrix = self.weights.unscaled(&matrix, rows, cols)?;
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
    /// Loads several matrices that are fused in one tensor, by its GGUF name. The number of rows of each matrix is
    /// given.
    ///
    /// # Errors
    /// See [`LayerWeights::projection`].
    pub(crate) fn fused<const N: usize>(
        &mut self,
        name: &str,
        has_bias: bool,
        rows: [usize; N],
        cols: usize,
    ) -> Result<[Projection; N]> {
        let whole = self.projection(name, has_bias, rows.iter().sum(), cols)?;
        let first = |part: usize| rows[..part].iter().sum();
        Ok(std::array::from_fn(|part| whole.part(first(part), rows[part])))
    }

    /// Loads a short convolution by its GGUF name, with its bias if it has one. Hugging Face checkpoints have an axis of
    /// length 1 between channels and kernel.
    ///
    /// # Errors
    /// See [`LayerWeights::projection`].
    pub(crate) fn convolution(
        &mut self,
        name: &str,
        has_bias: bool,
        channels: usize,
        kernel: usize,
    ) -> Result<ShortConvolution> {
        let tensor = self.names.of_layer(name, self.layer);
        let shape: &[usize] = match self.names {
            DecoderNames::Gguf { .. } => &[channels, kernel],
            DecoderNames::HuggingFace { .. } => &[channels, 1, kernel],
        };
        let weight = self.weights.plain(&tensor, shape)?;
        let bias = has_bias.then(|| self.bias(name, channels)).transpose()?;
        Ok(ShortConvolution { weight, bias, kernel })
    }

    /// Loads a vector by its GGUF name. GGUF files store it as a matrix with a row for each of `groups` equal parts.
    ///
    /// # Errors
    /// See [`LayerWeights::vector`].
    pub(crate) fn grouped(&mut self, name: &str, groups: usize, len: usize) -> Result<Vec<f32>> {
        let tensor = self.names.of_layer(name, self.layer);
        self.weights.plain_of(&tensor, &[&[len], &[groups, len / groups]])
    }

    /// Loads a vector by its GGUF name. GGUF files store it as a matrix of one row or one column.
    ///
    /// # Errors
    /// See [`LayerWeights::vector`].
    pub(crate) fn flat(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let tensor = self.names.of_layer(name, self.layer);
        self.weights.plain_of(&tensor, &[&[len], &[len, 1], &[1, len]])
    }

    /// Returns true for a GGUF file.
    pub(super) fn is_gguf(&self) -> bool {
        matches!(self.names, DecoderNames::Gguf { .. })
    }

    /// Returns the operation in place of attention, if the layer is recurrent.
    pub(super) fn recurrent_mixer(&self) -> Option<RecurrentMixer> {
        self.config.recurrent_mixer(self.layer)
    }

    /// Returns true if a Hugging Face checkpoint fuses the queries, keys and values of attention in one tensor, grouped
    /// by key-value head. False for models with recurrent layers, because there a tensor of this name may belong to a
    /// recurrent layer.
    fn has_fused_heads(&self) -> bool {
        let is_named = |layer: &[(&str, &str)]| layer.iter().any(|(name, _)| *name == "attn_qkv");
        let has_name = matches!(self.names, DecoderNames::HuggingFace { layer, .. } if is_named(layer));
        has_name && self.config.recurrent.is_none()
    }

    /// Returns true for a GGUF file that has this tensor in the layer. Returns false for Hugging Face files, which
    /// always have the architecture's own tensors.
    pub(super) fn has_in_gguf(&self, name: &str) -> bool {
        self.is_gguf() && self.weights.has(&self.names.of_layer(name, self.layer))
    }
}

/// Loads a norm by the name of its weight. The architecture decides the kind of norm.
fn load_norm(weights: &mut Weights, c: &DecoderConfig, name: &str, len: usize) -> Result<Norm> {
    if c.norm == NormKind::Rms {
        return Ok(Norm::Rms(c.rms_norm(weights.vector(name, len)?)));
    }
    let weight = match c.norm {
        NormKind::LayerAlone => vec![1.0; len],
        _ => weights.vector(name, len)?,
    };
    let bias = match (c.norm, name.strip_suffix("weight")) {
        (NormKind::Layer, Some(stem)) => weights.vector(&format!("{stem}bias"), len)?,
        _ => vec![0.0; len],
    };
    Ok(Norm::Layer(LayerNorm { weight, bias, eps: c.norm_eps, gain: c.norm_gain }))
}

impl Projections {
    /// Reads the matrices of a layer's attention. GGUF files may have queries, keys and values in one tensor.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub(crate) fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let (d, has_bias) = (c.hidden_size, c.biases.qkv);
        let (q_width, kv_width) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        // A head's queries and its gate are rows of one matrix.
        let q_rows = if c.shape.has_output_gate { 2 * q_width } else { q_width };
        let fused = [q_rows, kv_width, kv_width];
        let [q, k, v] = match (w.has_in_gguf("attn_qkv"), w.has_fused_heads()) {
            (true, _) => w.fused_heads(has_bias, fused, d)?,
            (false, true) => w.projection("attn_qkv", has_bias, fused.iter().sum(), d)?.of_groups(c),
            (false, false) => [
                w.projection("attn_q", has_bias, q_rows, d)?,
                w.projection("attn_k", has_bias, kv_width, d)?,
                w.projection("attn_v", has_bias, kv_width, d)?,
            ],
        };
        let (q, gate) = match c.shape.has_output_gate {
            true => {
                let half = |half| grouped(c.n_heads, &[c.head_dim; 2], half);
                (q.gathered(&half(0)), Some(q.gathered(&half(1))))
            }
            false => (q, None),
        };
        Ok(Self { q, k, v, output: w.projection("attn_output", c.biases.output, d, q_width)?, gate })
    }
}

impl FeedForward {
    /// Loads the weights of a layer's feed-forward half.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub(crate) fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        Ok(Self { norm: Some(w.any_norm("ffn_norm", c.hidden_size)?), ..Self::without_norm(c, w)? })
    }

    /// Loads the block without a norm before it.
    ///
    /// # Errors
    /// See [`FeedForward::load`].
    pub(crate) fn without_norm(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let (d, f, has_bias) = (c.hidden_size, w.dense_ffn_size().unwrap_or(c.ffn_size), c.biases.mlp);
        let (gate, up) = match c.shape.ffn {
            FfnShape::FusedGate if !w.has_in_gguf("ffn_gate") => {
                let [gate, up] = w.fused("ffn_up", has_bias, [f; 2], d)?;
                (Some(gate), up)
            }
            FfnShape::Gated | FfnShape::FusedGate => {
                (Some(w.projection("ffn_gate", has_bias, f, d)?), w.projection("ffn_up", has_bias, f, d)?)
            }
            FfnShape::Plain => (None, w.projection("ffn_up", has_bias, f, d)?),
        };
        let sparsity = c.streams.as_ref().and_then(|streams| streams.sparsity.get(w.layer).copied()?);
        Ok(Self { norm: None, gate, sparsity, up, down: w.projection("ffn_down", has_bias, d, f)? })
    }
}

impl<B: DecoderBlock> Decoder<B> {
    /// Reads a model from a GGUF file.
    ///
    /// # Errors
    /// If a metadata key or tensor is missing, has another type or shape than the architecture requires, or asks for
    /// something that the forward pass does not support.
    pub fn from_gguf(file: &Gguf, family: &'static Family) -> Result<Self> {
        let names =
            DecoderNames::Gguf { layer: family.gguf_layer_names, output_norm: family.gguf_output_norm };
        Self::load(family, DecoderConfig::from_gguf(file, family)?, &file.tensors, names)
    }

    /// Reads a model from `config.json` and its tensors.
    ///
    /// # Errors
    /// See [`Decoder::from_gguf`].
    pub fn from_hugging_face(config: &Config, tensors: &TensorFile, family: &'static Family) -> Result<Self> {
        let settings = DecoderConfig::from_hugging_face(config, family)?;
        let decoded = match Dequantisation::read(config)? {
            Some(quantised) => {
                quantised.check_activations()?;
                Some(quantised.decoded(tensors)?)
            }
            None => {
                settings_files::check_unquantised(config, tensors)?;
                None
            }
        };
        let tensors = decoded.as_ref().unwrap_or(tensors);
        Self::load(family, settings, tensors, DecoderNames::hugging_face(tensors, family))
    }

    /// Reads a model from a llama2.c file, whose tensors have GGUF names.
    ///
    /// # Errors
    /// If a size is invalid, or a scale is not a number.
    pub fn from_llama2c(file: &Llama2cFile, family: &'static Family) -> Result<Self> {
        let names = DecoderNames::Gguf { layer: &[], output_norm: "output_norm" };
        Self::load(family, DecoderConfig::from_llama2c(file, family)?, &file.tensors, names)
    }

    fn load(
        family: &'static Family,
        config: DecoderConfig,
        file: &TensorFile,
        names: DecoderNames,
    ) -> Result<Self> {
        let c = &config;
        let long = matches!(c.rope.scaling, RopeScaling::Long { .. });
        let mut w = Weights::new(file, family.architecture);
        let token_embd = w.matrix(&names.token_embd(), c.vocab_size, c.hidden_size)?;
        let layer_embeddings = LayerEmbeddings::load(c, &mut w, names)?;
        let streams = StreamProjections::load(c, &mut w, names)?;
        let layer = |layer| B::load(c, &mut LayerWeights { weights: &mut w, names, config: c, layer });
        let layers = (0..c.n_layers).map(layer).collect::<Result<Vec<_>>>()?;
        cache_scales::check(c, file, &layers)?;
        let output_norm = load_norm(&mut w, c, &names.output_norm(), c.hidden_size)?;
        let output = match c.tied_output {
            true => w.tied(&names.output(), &token_embd)?,
            false => w.matrix(&names.output(), c.vocab_size, c.hidden_size)?,
        };
        let output_bias = match (family.has_head_bias, names.output().strip_suffix("weight")) {
            (true, Some(stem)) => Some(w.vector(&format!("{stem}bias"), c.vocab_size)?),
            _ => None,
        };
        let position_embd = match c.positions {
            Positions::Learned { offset } => {
                let rows = c.context_length.saturating_add(offset);
                Some(w.matrix(&names.position_embd(), rows, c.hidden_size)?)
            }
            Positions::Rotary | Positions::Alibi | Positions::Absent => None,
        };
        let embedding_norm = match family.outer_names.embedding_norm {
            Some(name) => Some(load_norm(&mut w, c, &names.embedding_norm(name), c.hidden_size)?),
            None => None,
        };
        let predicting = c.n_layers..c.n_layers.saturating_add(c.predicting_layers);
        let is_beyond = |name: &str| predicting.clone().any(|layer| names.is_of_layer(name, layer));
        let sharing = c.sharing_layers();
        let is_shared = |name: &str| sharing.clone().any(|layer| names.is_of_keys(name, layer));
        let is_unread = |name: &str| names.is_beside(name) || is_beyond(name) || is_shared(name);
        w.finish(|name| is_unread(name) || long && LONG_FACTORS.contains(&name))?;
        Ok(Self {
            architecture: family.architecture,
            slopes: (c.positions == Positions::Alibi).then(|| slopes(c.n_heads)),
            config,
            token_embd,
            layer_embeddings,
            streams,
            layers,
            output_norm,
            output,
            output_bias,
            position_embd,
            embedding_norm,
        })
    }
}
