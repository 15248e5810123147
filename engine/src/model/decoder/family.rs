//! Differences between the architectures of the Llama family, in addition to their block diagrams.

use serde_json::Value;

use crate::error::Result as ReadResult;
use crate::model::decoder::layer_sizes::all_but;
use crate::model::decoder::{
    BlockShape, DecoderConfig, ExpertFiles, NormKind, RecurrentFiles, TemperatureFiles,
};
use crate::model::json::Config;
use crate::ops::activation::Activation;
use crate::ops::attention::AttentionScale;
use crate::ops::norm::Gain;
use crate::ops::rope::RopeRounding;
use crate::ops::scaling::Multiplier;
use crate::tensor::RopePairing;

/// Constants and conventions of an architecture, and defaults that its files omit.
pub struct Family {
    /// Name in dumps and tolerances.
    pub(crate) architecture: &'static str,
    /// Names in GGUF files.
    pub(crate) gguf_names: &'static [&'static str],
    /// Values of `model_type` in a `config.json`.
    pub(crate) model_types: &'static [&'static str],
    /// RoPE pairing of the q and k rows in its Hugging Face files.
    pub(crate) pairing: RopePairing,
    /// RoPE pairing of the q and k rows in its GGUF files.
    pub(crate) gguf_pairing: RopePairing,
    /// Norms and halves of a block, for architectures with a [`StandardBlock`](crate::model::decoder::StandardBlock).
    pub(crate) shape: BlockShape,
    /// True if keys and values are compressed to latents.
    pub(crate) is_latent: bool,
    pub(crate) norm: NormKind,
    /// Key of the norms' epsilon in `config.json`.
    pub(crate) json_eps: &'static str,
    /// Activation function of the feed-forward block.
    pub(crate) activation: Activation,
    /// Names of activation functions that its `config.json` may state. If it states none, `activation` is used.
    pub(crate) hidden_acts: &'static [&'static str],
    /// Activation functions that differ in GGUF files with certain architecture names.
    pub(crate) gguf_activations: &'static [(&'static str, Activation)],
    /// True if programs that read its GGUF files use the embedding table as the head even if `output.weight` is
    /// present.
    pub(crate) gguf_head_is_tied: bool,
    /// True if its Hugging Face checkpoints may have BitNet's linear layers.
    pub(crate) may_be_quantised: bool,
    /// Relation between the gain of the norms and the weights in Hugging Face files: the weight itself, or 1 + weight.
    pub(crate) gain: Gain,
    /// Matrices that may have a bias.
    pub(crate) biases: BiasRules,
    /// Factor that multiplies the embeddings.
    pub(crate) embed_scale: fn(&DecoderConfig) -> Option<Multiplier>,
    /// Factor of q·k, if no file states one.
    pub(crate) attn_scale: fn(&DecoderConfig) -> AttentionScale,
    /// Keys of factors and soft caps in its files.
    pub(crate) stated: &'static [NumberKey],
    /// Default sliding window, if some of its layers have one.
    pub(crate) sliding: Option<SlidingDefaults>,
    /// True if `use_sliding_window` must be true for a stated window to apply. False if that key has no effect.
    pub(crate) has_window_switch: bool,
    /// Default interval of layers without RoPE.
    pub(crate) unrotated_every: Option<usize>,
    /// True if transformers treats an empty list of layers with RoPE as absent.
    pub(crate) may_list_no_layers: bool,
    /// Keys of the position-dependent temperature of queries, if the architecture has one.
    pub(crate) query_temperature: Option<TemperatureFiles>,
    /// True if its layers may differ in heads, keys and feed-forward size, and may have per-layer embeddings.
    pub(crate) has_layer_variants: bool,
    /// True if it has several residual streams (AltUp).
    pub(crate) has_streams: bool,
    /// RoPE variants in its files in addition to Llama's.
    pub(crate) rope: RopeExtras,
    /// Defaults of transformers for keys that a `config.json` omits.
    pub(crate) config_defaults: fn() -> Value,
    /// Expert settings, if the architecture has experts.
    pub(crate) experts: Option<ExpertFiles>,
    /// Keys of layers with a recurrent state in place of keys and values, if the architecture has such layers.
    pub(crate) recurrent: Option<RecurrentFiles>,
    /// Function that computes the width of the feed-forward block from a `config.json`, if no single key states it.
    pub(crate) ffn_size: Option<fn(&Config) -> ReadResult<usize>>,
    /// Keys of a `config.json`, each with another key that takes precedence over it.
    pub(crate) json_aliases: &'static [(&'static str, &'static str)],
    /// Keys of the number of extra layers that predict further tokens. These layers are not computed.
    pub(crate) predicting: Option<[&'static str; 2]>,
    /// Hugging Face names of a layer's tensors that differ from Llama's, by GGUF name. `{}` is the expert's index; a name
    /// that ends in `=` has no `.weight`.
    pub(crate) layer_names: &'static [(&'static str, &'static str)],
    /// Names of a layer's tensors in its GGUF files that differ from Llama's.
    pub(crate) gguf_layer_names: &'static [(&'static str, &'static str)],
    /// Name of the last norm in its GGUF files.
    pub(crate) gguf_output_norm: &'static str,
    /// Hugging Face names of the tensors outside of layers.
    pub(crate) outer_names: OuterNames,
    /// The way in which the model encodes positions.
    pub(crate) positions: Positions,
    /// True if the vocabulary projection has a bias.
    pub(crate) has_head_bias: bool,
    /// Function that computes the number of key-value heads from a `config.json`, if no single key states it.
    pub(crate) kv_heads: Option<fn(&Config) -> ReadResult<usize>>,
    /// Returns an error for settings of a `config.json` that only this architecture has and that the forward pass does not
    /// support.
    pub(crate) refuse_json: fn(&Config) -> ReadResult<()>,
}

/// The way in which a model encodes positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// RoPE of queries and keys.
    Rotary,
    /// A table of learned positions, whose rows are added to the embeddings.
    Learned {
        /// Number of rows before the row of the first position.
        offset: usize,
    },
    /// ALiBi: a bias of scores that grows with the distance between query and key.
    Alibi,
    /// None: recurrent layers keep the order of tokens.
    Absent,
}

/// Hugging Face names of the tensors outside of layers.
#[derive(Clone, Copy)]
pub(crate) struct OuterNames {
    /// Prefix of the model's names in complete checkpoints.
    pub(crate) prefix: &'static str,
    /// Prefix of the layers' names, after the model's prefix.
    pub(crate) layers: &'static str,
    /// The embedding table.
    pub(crate) embedding: &'static str,
    /// The norm of embeddings, if there is one.
    pub(crate) embedding_norm: Option<&'static str>,
    /// The last norm.
    pub(crate) norm: &'static str,
    /// The vocabulary projection.
    pub(crate) head: &'static str,
    /// The table of learned positions.
    pub(crate) positions: &'static str,
}

impl OuterNames {
    /// Llama's names.
    pub(crate) const LLAMA: Self = Self {
        prefix: "model.",
        layers: "layers",
        embedding: "embed_tokens",
        embedding_norm: None,
        norm: "norm",
        head: "lm_head",
        positions: "embed_positions",
    };
}

impl Family {
    /// Returns the layers without RoPE: from a file's list, or every n-th of `n_layers`.
    pub(super) fn unrotated(
        &self,
        every: Option<usize>,
        n_layers: usize,
        listed: Option<Vec<bool>>,
    ) -> Vec<bool> {
        let rotating = match (listed, every.or(self.unrotated_every)) {
            (Some(listed), _) => listed,
            (None, Some(every)) => all_but(every, n_layers),
            (None, None) => Vec::new(),
        };
        rotating.into_iter().map(|rotates| !rotates).collect()
    }

    /// Returns the gate's activation function for a GGUF file with that architecture name.
    pub(super) fn gguf_activation(&self, name: &str) -> Activation {
        let other = self.gguf_activations.iter().find(|(known, _)| *known == name);
        other.map_or(self.activation, |(_, activation)| *activation)
    }
}

/// Rules for the biases of an architecture's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BiasRules {
    /// Queries, keys and values.
    pub(crate) qkv: BiasRule,
    /// Output projection of attention.
    pub(crate) output: BiasRule,
    /// Feed-forward block.
    pub(crate) mlp: BiasRule,
}

/// Rule for the biases of one kind of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BiasRule {
    /// No model has the biases.
    Never,
    /// Every model has the biases.
    Always,
    /// Stated by this key of `config.json`. GGUF files have the biases if they contain the tensors.
    Stated(&'static str),
}

impl BiasRules {
    /// No biases.
    pub(crate) const NONE: Self =
        Self { qkv: BiasRule::Never, output: BiasRule::Never, mlp: BiasRule::Never };

    /// All biases, if the key is true.
    pub(crate) const fn stated(key: &'static str) -> Self {
        let rule = BiasRule::Stated(key);
        Self { qkv: rule, output: rule, mlp: rule }
    }

    /// Returns the rules in order.
    pub(super) fn all(&self) -> [BiasRule; 3] {
        [self.qkv, self.output, self.mlp]
    }
}

/// Keys of a factor or soft cap in model files, and where the configuration stores it.
pub(crate) struct NumberKey {
    /// Key in `config.json`.
    pub(crate) json: &'static str,
    /// Key in GGUF files, after the architecture's name.
    pub(crate) gguf: &'static str,
    /// Defaults for a `config.json` and a GGUF file without the key; `None` leaves the option unset.
    pub(crate) default: [Option<f32>; 2],
    /// Function that stores the value in the configuration.
    pub(crate) set: fn(&mut DecoderConfig, f32),
}

impl NumberKey {
    /// Soft cap of the logits, with its defaults.
    pub(crate) const fn logits_cap(default: [Option<f32>; 2]) -> Self {
        const KEY: &str = "final_logit_softcapping";
        Self { json: KEY, gguf: KEY, default, set: |config, cap| config.logits_cap = Some(cap) }
    }

    /// Stores the number in the configuration, or returns a message about the expected value.
    pub(super) fn put(&self, config: &mut DecoderConfig, number: f32) -> Result<(), &'static str> {
        if !(number > 0.0 && number.is_finite()) {
            return Err("a positive number");
        }
        (self.set)(config, number);
        Ok(())
    }
}

/// RoPE variants of an architecture.
#[derive(Clone, Copy)]
pub(crate) struct RopeExtras {
    /// Values that the architecture's authors round to the type of activations.
    pub(crate) rounding: RopeRounding,
    /// True if only a part of each head may rotate.
    pub(crate) may_be_partial: bool,
    /// True if a factor `alpha` may stretch the base.
    pub(crate) may_have_alpha: bool,
    /// True if frequencies may be scaled by LongRoPE.
    pub(crate) may_be_long: bool,
    /// Keys of the base, and of the part of a head that rotates, in files of transformers 4.
    pub(crate) old_keys: [&'static str; 2],
}

impl RopeExtras {
    /// No variants in addition to Llama's RoPE.
    pub(crate) const NONE: Self = Self {
        rounding: RopeRounding::Each,
        may_be_partial: false,
        may_have_alpha: false,
        may_be_long: false,
        old_keys: ["rope_theta", "partial_rotary_factor"],
    };
}

/// Default sliding-window layers and their RoPE, for files without these keys.
pub(crate) struct SlidingDefaults {
    /// Interval of layers with full attention; `None` if no layer has it.
    pub(crate) full_every: Option<usize>,
    /// RoPE of sliding-window layers.
    pub(crate) rope: SlidingRope,
    /// Chunk size, which GGUF files do not state. `None` if windows are not chunks of positions.
    pub(crate) chunk: Option<usize>,
    /// True if only sliding-window layers have RoPE, in a model whose files state a window.
    pub(crate) rotates_alone: bool,
    /// Returns true if llama.cpp ignores the window that a GGUF file states, for a model with this number of layers.
    pub(crate) is_off_in_gguf: fn(usize) -> bool,
}

/// RoPE of sliding-window layers.
pub(crate) enum SlidingRope {
    /// Same RoPE as the other layers.
    Shared,
    /// Same base as the other layers, without their scaling.
    Unscaled,
    /// RoPE with another base.
    Own {
        /// Key of the base in `config.json`.
        key: &'static str,
        /// Default base of RoPE's frequencies (`rope_theta`).
        theta: f32,
    },
}

impl SlidingDefaults {
    /// Every layer has a sliding window if the file states one.
    pub(crate) const ALL: Self = Self {
        full_every: None,
        rope: SlidingRope::Shared,
        chunk: None,
        rotates_alone: false,
        is_off_in_gguf: |_| false,
    };
}

/// Returns the usual scale, 1 / √D, applied to the products.
pub(crate) fn inverse_root_of_head_dim(c: &DecoderConfig) -> AttentionScale {
    AttentionScale::Products(1.0 / (c.head_dim as f32).sqrt())
}
