//! Differences between the architectures of the Llama family, in addition to their block diagrams.

use serde_json::Value;

use crate::model::decoder::DecoderConfig;
use crate::ops::activation::Activation;
use crate::ops::attention::AttentionScale;
use crate::ops::norm::Gain;
use crate::ops::scaling::Multiplier;
use crate::tensor::RopePairing;

/// Constants and conventions of an architecture, and defaults that its files omit.
pub struct Family {
    /// Name in dumps and tolerances.
    pub architecture: &'static str,
    /// Names in GGUF files.
    pub gguf_names: &'static [&'static str],
    /// Values of `model_type` in a `config.json`.
    pub model_types: &'static [&'static str],
    /// Layout of the q and k rows in its GGUF files.
    pub gguf_pairing: RopePairing,
    /// Activation function of the gate.
    pub activation: Activation,
    /// Activation functions that differ in GGUF files with certain architecture names.
    pub gguf_activations: &'static [(&'static str, Activation)],
    /// True if readers of its GGUF files use the embedding table as the head even if `output.weight` is present.
    pub gguf_head_is_tied: bool,
    /// True if its Hugging Face checkpoints may have BitNet's linear layers.
    pub may_be_quantised: bool,
    /// Gain of the norms in terms of the weights in Hugging Face files: the weight itself, or 1 + weight.
    pub gain: Gain,
    /// Matrices that may have a bias.
    pub biases: BiasRules,
    /// Factor of its embeddings.
    pub embed_scale: fn(&DecoderConfig) -> Option<Multiplier>,
    /// Factor of q·k, if no file states one.
    pub attn_scale: fn(&DecoderConfig) -> AttentionScale,
    /// Keys of factors and soft caps in its files.
    pub stated: &'static [NumberKey],
    /// Default sliding window, if some of its layers have one.
    pub sliding: Option<SlidingDefaults>,
    /// Default interval of layers without RoPE.
    pub unrotated_every: Option<usize>,
    /// RoPE variants in its files in addition to Llama's.
    pub rope: RopeExtras,
    /// Defaults of transformers for keys that a `config.json` omits.
    pub config_defaults: fn() -> Value,
    /// Expert settings, if the architecture has experts.
    pub experts: Option<ExpertFiles>,
    /// Hugging Face names of a layer's tensors that differ from Llama's, by GGUF name. `{}` is the expert's index.
    pub layer_names: &'static [(&'static str, &'static str)],
}

impl Family {
    /// Returns the layers without RoPE: from a file's list of layers with RoPE, or every n-th of `n_layers`.
    pub(super) fn unrotated(
        &self,
        every: Option<usize>,
        n_layers: usize,
        listed: Option<Vec<bool>>,
    ) -> Vec<bool> {
        match (listed, every.or(self.unrotated_every)) {
            (Some(rotating), _) => rotating.into_iter().map(|rotates| !rotates).collect(),
            (None, Some(every)) => (1..=n_layers).map(|layer| layer.is_multiple_of(every)).collect(),
            (None, None) => Vec::new(),
        }
    }

    /// Returns the gate's activation function for a GGUF file with that architecture name.
    pub(super) fn gguf_activation(&self, name: &str) -> Activation {
        let other = self.gguf_activations.iter().find(|(known, _)| *known == name);
        other.map_or(self.activation, |(_, activation)| *activation)
    }
}

/// Matrices of an architecture that may have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BiasRules {
    /// True if queries, keys and values have a bias in every file.
    pub always_qkv: bool,
    /// True if all attention matrices have biases when `attention_bias` is true; in GGUF files, when the bias tensors
    /// exist.
    pub attention: bool,
    /// True if the feed-forward block has biases when `mlp_bias` is true; in GGUF files, when the bias tensors exist.
    pub mlp: bool,
}

impl BiasRules {
    /// No biases.
    pub const NONE: Self = Self { always_qkv: false, attention: false, mlp: false };
}

/// Keys of a factor or soft cap in model files, and where the configuration stores it.
pub struct NumberKey {
    /// Key in `config.json`.
    pub json: &'static str,
    /// Key in GGUF files, after the architecture's name.
    pub gguf: &'static str,
    /// Default for files without the key; `None` leaves the option unset.
    pub default: Option<f32>,
    /// Stores the value in the configuration.
    pub set: fn(&mut DecoderConfig, f32),
}

impl NumberKey {
    /// Stores the number in the configuration, or returns a message about the expected value.
    pub(super) fn put(&self, config: &mut DecoderConfig, number: f32) -> Result<(), &'static str> {
        if !(number > 0.0 && number.is_finite()) {
            return Err("a positive number");
        }
        (self.set)(config, number);
        Ok(())
    }
}

/// Expert settings in the files of an architecture.
#[derive(Clone, Copy)]
pub struct ExpertFiles {
    /// Key of one expert's feed-forward size, in `config.json` and, after the architecture's name, in GGUF files.
    pub ffn_size: [&'static str; 2],
    /// Key in `config.json` for dividing the chosen experts' weights by their sum. Without the key, they always are.
    pub normalised: Option<&'static str>,
    /// True if llama.cpp divides the chosen experts' weights by their sum.
    pub gguf_normalised: bool,
    /// Key of the shared expert's feed-forward size, in `config.json` and GGUF files, if there is a shared expert.
    pub shared_ffn_size: Option<[&'static str; 2]>,
    /// True if the architecture's authors round the experts' weights to the activation type.
    pub is_rounded: bool,
}

/// RoPE variants of an architecture.
#[derive(Clone, Copy, Default)]
pub struct RopeExtras {
    /// True if its authors keep cosines, sines and products in `f32`.
    pub is_unrounded: bool,
    /// True if only a part of each head may rotate.
    pub may_be_partial: bool,
    /// True if frequencies may be scaled by LongRoPE.
    pub may_be_long: bool,
}

impl RopeExtras {
    /// Llama's RoPE only.
    pub const NONE: Self = Self { is_unrounded: false, may_be_partial: false, may_be_long: false };
}

/// Default sliding-window layers and their RoPE base, for files without these keys.
pub struct SlidingDefaults {
    /// Interval of layers with full attention; `None` if no layer has it.
    pub full_every: Option<usize>,
    /// RoPE base of sliding-window layers; `None` for the model's base.
    pub theta: Option<f32>,
    /// True if llama.cpp computes without the window that a GGUF file states.
    pub is_off_in_gguf: bool,
}

impl SlidingDefaults {
    /// Every layer slides if the file states a window.
    pub const ALL: Self = Self { full_every: None, theta: None, is_off_in_gguf: false };
}

/// Returns the usual scale, 1 / √D, applied to the products.
pub fn inverse_root_of_head_dim(c: &DecoderConfig) -> AttentionScale {
    AttentionScale::Products(1.0 / (c.head_dim as f32).sqrt())
}
