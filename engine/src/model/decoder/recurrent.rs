//! Layers with a recurrent state in place of keys and values: their settings in the files of a model.

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::cache::RecurrentSizes;
use crate::model::decoder::delta::{DeltaLayout, DeltaSizes};
use crate::model::decoder::layer_sizes::GgufLayers;
use crate::model::decoder::state_space_files::{self, SingleHalf, StateSpaceFiles};
use crate::model::decoder::{BranchMultipliers, StateSpaceSizes, delta_files};
use crate::model::json::Config;
use crate::model::size;
use crate::ops::short_convolution::LONGEST_KERNEL;

/// Recurrent layers of a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecurrentLayers {
    /// True for each recurrent layer; the other layers have attention.
    pub(crate) layers: Vec<bool>,
    /// Operation in place of attention.
    pub(crate) mixer: RecurrentMixer,
}

/// Operation that mixes tokens in a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RecurrentMixer {
    /// A gated short convolution.
    Convolution {
        /// Number of channels, C: the hidden size.
        channels: usize,
        /// Number of weights of a channel, k.
        kernel: usize,
        /// True if the convolution and its projections have biases.
        has_bias: bool,
    },
    /// Mamba-2.
    StateSpace(StateSpaceSizes),
    /// Linear attention with a gated delta rule.
    DeltaRule(DeltaSizes),
}

impl RecurrentMixer {
    /// Returns the sizes of a layer's state.
    pub(crate) fn state(&self) -> RecurrentSizes {
        match *self {
            RecurrentMixer::Convolution { channels, kernel, .. } => {
                RecurrentSizes { channels, kept: kernel - 1, matrices: [0; 3], has_limits: false }
            }
            RecurrentMixer::StateSpace(sizes) => sizes.state(),
            RecurrentMixer::DeltaRule(sizes) => sizes.state(),
        }
    }

    /// Checks the sizes.
    pub(super) fn check(&self, file: &Path) -> Result<()> {
        match *self {
            RecurrentMixer::Convolution { kernel, .. } => check_kernel(file, kernel)?,
            RecurrentMixer::StateSpace(sizes) => {
                check_kernel(file, sizes.kernel)?;
                state_space_files::check(file, sizes)?;
            }
            RecurrentMixer::DeltaRule(sizes) => {
                check_kernel(file, sizes.kernel)?;
                delta_files::check(file, sizes)?;
            }
        }
        size::check_state(file, self.state().matrices)
    }
}

fn check_kernel(file: &Path, kernel: usize) -> Result<()> {
    match (1..=LONGEST_KERNEL).contains(&kernel) {
        true => Ok(()),
        false => Err(Error::bad_key(file, "kernel size", kernel, format!("1 to {LONGEST_KERNEL}"))),
    }
}

/// Keys of recurrent layers in the files of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecurrentFiles {
    /// LFM2's gated short convolution.
    Lfm2,
    /// Mamba-2.
    StateSpace(StateSpaceFiles),
    /// Linear attention with a gated delta rule.
    DeltaRule(DeltaLayout),
}

/// Key of the kinds of layers in `config.json`.
const LAYER_TYPES: &str = "layer_types";

impl RecurrentFiles {
    /// Returns the names of recurrent layers in `layer_types`.
    pub(super) fn layer_types(self) -> &'static [&'static str] {
        match self {
            RecurrentFiles::Lfm2 => &["conv"],
            RecurrentFiles::StateSpace(StateSpaceFiles::FalconH1) => &["hybrid"],
            RecurrentFiles::StateSpace(_) => &["linear_attention", "mamba"],
            RecurrentFiles::DeltaRule(_) => &["linear_attention"],
        }
    }

    /// Returns the number of layers, if the `config.json` states it only through its list of layer kinds.
    pub(super) fn listed_in_json(self, file: &Config) -> Result<Option<usize>> {
        Ok(self.kinds(file)?.map(|kinds| kinds.len()))
    }

    /// Returns which layers are only a feed-forward block, in an architecture whose layers have one half each.
    pub(super) fn feed_forward_in_json(self, file: &Config) -> Result<Option<Vec<bool>>> {
        Ok(self.kinds(file)?.map(|kinds| SingleHalf::feed_forward(&kinds)))
    }

    /// Reads factors inside of a block, if the architecture has any.
    pub(super) fn multipliers_in_json(self, file: &Config) -> Result<Option<BranchMultipliers>> {
        let has_any = self == RecurrentFiles::StateSpace(StateSpaceFiles::FalconH1);
        has_any.then(|| BranchMultipliers::in_json(file)).transpose()
    }

    fn kinds(self, file: &Config) -> Result<Option<Vec<SingleHalf>>> {
        match self == RecurrentFiles::StateSpace(StateSpaceFiles::NemotronH) {
            true => state_space_files::kinds(file).map(Some),
            false => Ok(None),
        }
    }

    /// Reads the recurrent layers of a `config.json`, if there are any.
    pub(super) fn in_json(self, file: &Config, n_layers: usize) -> Result<Option<RecurrentLayers>> {
        let kinds = file.texts(LAYER_TYPES)?;
        let layers: Vec<bool> = match self.kinds(file)? {
            Some(kinds) => kinds.iter().map(|kind| *kind == SingleHalf::Recurrent).collect(),
            None if kinds.is_empty() => self.unlisted(file, n_layers)?,
            None => kinds.iter().map(|kind| self.layer_types().contains(kind)).collect(),
        };
        if !layers.contains(&true) {
            return Ok(None);
        }
        let mixer = match self {
            RecurrentFiles::Lfm2 => RecurrentMixer::Convolution {
                channels: file.require_usize("hidden_size")?,
                kernel: file.require_usize("conv_L_cache")?,
                has_bias: file.optional_bool("conv_bias")?.unwrap_or(false),
            },
            RecurrentFiles::StateSpace(known) => RecurrentMixer::StateSpace(known.in_json(file)?),
            RecurrentFiles::DeltaRule(layout) => RecurrentMixer::DeltaRule(delta_files::sizes(file, layout)?),
        };
        mixer.check(file.path())?;
        Ok(Some(RecurrentLayers { layers, mixer }))
    }

    /// Returns true if attention layers apply RoPE. In a Granite `config.json`, `position_embedding_type` is then `rope`.
    pub(super) fn rotates_in_json(self, file: &Config) -> Result<bool> {
        match self {
            RecurrentFiles::StateSpace(StateSpaceFiles::GraniteHybrid) => {
                Ok(file.optional_str("position_embedding_type")? == Some("rope"))
            }
            _ => Ok(true),
        }
    }

    /// Returns true if attention layers apply RoPE. A Granite GGUF file without RoPE has `rope.scaling.finetuned` = false.
    pub(super) fn rotates_in_gguf(self, file: &Gguf, architecture: &str) -> Result<bool> {
        match self {
            RecurrentFiles::StateSpace(StateSpaceFiles::GraniteHybrid) => {
                Ok(file.optional(&format!("{architecture}.rope.scaling.finetuned"))?.unwrap_or(true))
            }
            _ => Ok(true),
        }
    }

    /// Reads the recurrent layers of a `config.json` without `layer_types`.
    fn unlisted(self, file: &Config, n_layers: usize) -> Result<Vec<bool>> {
        match self {
            RecurrentFiles::StateSpace(_) => Ok(vec![true; n_layers]),
            RecurrentFiles::DeltaRule(_) => delta_files::layers(file, n_layers),
            RecurrentFiles::Lfm2 => {
                let listed = file.marked_layers("full_attn_idxs", n_layers)?;
                let full = listed.unwrap_or_else(|| vec![true; n_layers]);
                Ok(full.into_iter().map(|is_full| !is_full).collect())
            }
        }
    }

    /// Reads the recurrent layers of a GGUF file; `None` if it has none. With a delta rule,
    /// `attention.recurrent_layers` or `full_attention_interval` marks them. Otherwise they are the layers without
    /// key-value heads. `kinds` lists the kinds of layers in a model whose layers have one half each.
    pub(super) fn in_gguf(
        self,
        layers: &GgufLayers,
        hidden_size: usize,
        kinds: Option<&[SingleHalf]>,
    ) -> Result<Option<RecurrentLayers>> {
        let (file, architecture) = (layers.file, layers.architecture);
        let flags: Vec<bool> = match (self, kinds) {
            (_, Some(kinds)) => kinds.iter().map(|kind| *kind == SingleHalf::Recurrent).collect(),
            (RecurrentFiles::DeltaRule(_), _) => delta_files::layers_in_gguf(layers)?,
            (RecurrentFiles::StateSpace(StateSpaceFiles::FalconH1), _) => vec![true; layers.count],
            _ => layers.sizes("attention.head_count_kv")?.iter().map(|count| *count == 0).collect(),
        };
        if !flags.contains(&true) {
            return Ok(None);
        }
        let mixer = match self {
            RecurrentFiles::Lfm2 => RecurrentMixer::Convolution {
                channels: hidden_size,
                kernel: file.require(&layers.key("shortconv.l_cache"))?,
                has_bias: false,
            },
            RecurrentFiles::StateSpace(known) => {
                RecurrentMixer::StateSpace(known.in_gguf(file, architecture, hidden_size)?)
            }
            RecurrentFiles::DeltaRule(layout) => {
                RecurrentMixer::DeltaRule(delta_files::sizes_in_gguf(file, architecture, layout)?)
            }
        };
        mixer.check(file.tensors.path())?;
        Ok(Some(RecurrentLayers { layers: flags, mixer }))
    }
}
