//! What sets the architectures of the Llama family apart, besides their block diagrams.

use serde_json::Value;

use crate::model::decoder::DecoderConfig;
use crate::ops::attention::Scale;
use crate::ops::ffn::Activation;
use crate::ops::multiplier::Multiplier;
use crate::ops::norm::Gain;
use crate::tensor::RopePairing;

/// Constants and conventions of an architecture, and what its files leave unsaid.
pub struct Family {
    /// Its name in dumps and tolerances.
    pub architecture: &'static str,
    /// Its names in GGUF files.
    pub gguf_names: &'static [&'static str],
    /// What `model_type` says of it in a `config.json`.
    pub model_types: &'static [&'static str],
    /// How the q and k rows of its GGUF files are laid out.
    pub gguf_pairing: RopePairing,
    /// The nonlinearity of its gate.
    pub activation: Activation,
    /// The nonlinearity in GGUF files under some of its names, where it is another.
    pub gguf_activations: &'static [(&'static str, Activation)],
    /// Whether readers of its GGUF files take the embedding table for the head even where `output.weight` is there.
    pub gguf_head_is_tied: bool,
    /// Whether its Hugging Face checkpoints may have linear layers of BitNet's kind.
    pub may_be_quantised: bool,
    /// How its norms use their weights, as Hugging Face files hold them.
    pub gain: Gain,
    /// Which of its matrices may have a bias.
    pub biases: BiasRules,
    /// What its embeddings are multiplied with.
    pub embed_scale: fn(&DecoderConfig) -> Option<Multiplier>,
    /// What q·k is multiplied with, where no file says.
    pub attn_scale: fn(&DecoderConfig) -> Scale,
    /// Numbers around its operations that its files state.
    pub stated: &'static [Stated],
    /// Whether some of its layers see only the last tokens, and how.
    pub sliding: Option<SlidingDefaults>,
    /// Every so many-th of its layers does not rotate queries and keys, where no file says.
    pub unrotated_every: Option<usize>,
    /// Which RoPE its files may ask for besides that of Llama.
    pub rope: RopeExtras,
    /// What transformers takes for keys that a `config.json` leaves out.
    pub config_defaults: fn() -> Value,
    /// Its experts, if it has any.
    pub experts: Option<ExpertFiles>,
    /// What Hugging Face checkpoints call tensors of a layer, by GGUF name, where Llama's are called otherwise. Of a matrix of
    /// each expert `{}` stands for its number.
    pub layer_names: &'static [(&'static str, &'static str)],
}

impl Family {
    /// Which layers rotate nothing: as a file lists those that do, or every so many-th of `n_layers`.
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

    /// The nonlinearity of the gate in a GGUF file of this architecture's.
    pub(super) fn gguf_activation(&self, name: &str) -> Activation {
        let other = self.gguf_activations.iter().find(|(known, _)| *known == name);
        other.map_or(self.activation, |(_, activation)| *activation)
    }
}

/// Which matrices of an architecture may have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BiasRules {
    /// Queries, keys and values have one in every file.
    pub always_qkv: bool,
    /// All of attention has one where `attention_bias` says so; in GGUF files where the tensors are there.
    pub attention: bool,
    /// The feed-forward block has one where `mlp_bias` says so; in GGUF files where the tensors are there.
    pub mlp: bool,
}

impl BiasRules {
    /// No biases.
    pub const NONE: Self = Self { always_qkv: false, attention: false, mlp: false };
}

/// A number around an operation: a factor, or a cap.
pub struct Stated {
    /// Its key in `config.json`.
    pub json: &'static str,
    /// Its key in GGUF files, behind the architecture's name.
    pub gguf: &'static str,
    /// What is taken where a file does not have the key; nothing is done where that is not told.
    pub default: Option<f32>,
    /// Where it belongs.
    pub set: fn(&mut DecoderConfig, f32),
}

impl Stated {
    /// Puts the number where it belongs, or says what was expected.
    pub(super) fn put(&self, config: &mut DecoderConfig, number: f32) -> Result<(), &'static str> {
        if !(number > 0.0 && number.is_finite()) {
            return Err("a positive number");
        }
        (self.set)(config, number);
        Ok(())
    }
}

/// What the files of an architecture with experts say of them.
#[derive(Clone, Copy)]
pub struct ExpertFiles {
    /// The key of the feed-forward size of one expert, in `config.json` and, behind the architecture's name, in GGUF files.
    pub ffn_size: [&'static str; 2],
    /// The key in `config.json` that tells whether the weights of the chosen are divided by their sum; they always are where
    /// there is none, and in GGUF files.
    pub normalised: Option<&'static str>,
    /// Whether its authors round those weights to the type of activations.
    pub is_rounded: bool,
}

/// What an architecture has of RoPE that Llama does not.
#[derive(Clone, Copy, Default)]
pub struct RopeExtras {
    /// Its authors round neither cosines and sines nor products to a short type.
    pub is_unrounded: bool,
    /// No more than a part of each head may rotate.
    pub may_be_partial: bool,
    /// Frequencies may be stretched by LongRoPE.
    pub may_be_long: bool,
}

impl RopeExtras {
    /// Llama's.
    pub const NONE: Self = Self { is_unrounded: false, may_be_partial: false, may_be_long: false };
}

/// Which layers see only the last tokens, and their positions, where no file says.
pub struct SlidingDefaults {
    /// Every so many-th layer sees all tokens; none does where that is not told.
    pub full_every: Option<usize>,
    /// The base of RoPE in the others; that of the model where it is not told.
    pub theta: Option<f32>,
}

/// 1 / √D, of the products.
pub fn inverse_root_of_head_dim(c: &DecoderConfig) -> Scale {
    Scale::Products(1.0 / (c.head_dim as f32).sqrt())
}
