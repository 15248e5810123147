//! Layers with a recurrent state in place of keys and values, in the files of a model.

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::cache::RecurrentSizes;
use crate::model::json::Config;
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
        /// Channels, C: the hidden size.
        channels: usize,
        /// Number of weights of a channel, k.
        kernel: usize,
        /// True if the convolution and its projections have biases.
        has_bias: bool,
    },
}

impl RecurrentMixer {
    /// Returns the sizes of a layer's state.
    pub(crate) fn state(&self) -> RecurrentSizes {
        match *self {
            RecurrentMixer::Convolution { channels, kernel, .. } => {
                RecurrentSizes { channels, kept: kernel - 1, matrices: [0; 3] }
            }
        }
    }

    /// Checks the sizes.
    pub(super) fn check(&self, file: &Path) -> Result<()> {
        match *self {
            RecurrentMixer::Convolution { kernel, .. } => check_kernel(file, kernel),
        }
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
}

/// Key of the kinds of layers in `config.json`.
const LAYER_TYPES: &str = "layer_types";

impl RecurrentFiles {
    /// Returns the names of recurrent layers in `layer_types`.
    pub(super) fn layer_types(self) -> &'static [&'static str] {
        match self {
            RecurrentFiles::Lfm2 => &["conv"],
        }
    }

    /// Reads the recurrent layers of a `config.json`.
    pub(super) fn in_json(self, file: &Config, n_layers: usize) -> Result<RecurrentLayers> {
        let kinds = file.texts(LAYER_TYPES)?;
        let layers = match kinds.is_empty() {
            true => self.unlisted(file, n_layers)?,
            false => kinds.iter().map(|kind| self.layer_types().contains(kind)).collect(),
        };
        let mixer = match self {
            RecurrentFiles::Lfm2 => RecurrentMixer::Convolution {
                channels: file.require_usize("hidden_size")?,
                kernel: file.require_usize("conv_L_cache")?,
                has_bias: file.optional_bool("conv_bias")?.unwrap_or(false),
            },
        };
        mixer.check(file.path())?;
        Ok(RecurrentLayers { layers, mixer })
    }

    /// Reads the recurrent layers of a `config.json` without a list of kinds.
    fn unlisted(self, file: &Config, n_layers: usize) -> Result<Vec<bool>> {
        match self {
            RecurrentFiles::Lfm2 => {
                const KEY: &str = "full_attn_idxs";
                let Some(listed) = file.get(KEY) else { return Ok(vec![false; n_layers]) };
                let mut layers = vec![true; n_layers];
                for index in listed.as_array().map(Vec::as_slice).unwrap_or_default() {
                    let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
                    match index.and_then(|index| layers.get_mut(index)) {
                        Some(is_recurrent) => *is_recurrent = false,
                        None => {
                            let expected = format!("layers from 0 to {}", n_layers.saturating_sub(1));
                            return Err(file.bad_key(KEY, listed, expected));
                        }
                    }
                }
                match listed.is_array() {
                    true => Ok(layers),
                    false => Err(file.bad_key(KEY, listed, "a list of layers")),
                }
            }
        }
    }

    /// Reads the recurrent layers of a GGUF file: those without key-value heads.
    pub(super) fn in_gguf(
        self,
        file: &Gguf,
        architecture: &str,
        n_layers: usize,
        hidden_size: usize,
    ) -> Result<RecurrentLayers> {
        let key = |name: &str| format!("{architecture}.{name}");
        let kv_heads_key = key("attention.head_count_kv");
        let kv_heads = kv_heads_by_layer(file, &kv_heads_key)?;
        let layers = match kv_heads.len() {
            1 => vec![kv_heads[0] == 0; n_layers],
            count if count == n_layers => kv_heads.iter().map(|count| *count == 0).collect(),
            count => {
                let (found, expected) =
                    (format!("{count} entries"), format!("one for each of {n_layers} layers"));
                return Err(Error::bad_key(file.tensors.path(), &kv_heads_key, found, expected));
            }
        };
        let mixer = match self {
            RecurrentFiles::Lfm2 => RecurrentMixer::Convolution {
                channels: hidden_size,
                kernel: file.require(&key("shortconv.l_cache"))?,
                has_bias: false,
            },
        };
        mixer.check(file.tensors.path())?;
        Ok(RecurrentLayers { layers, mixer })
    }
}

/// Reads the number of key-value heads of the layers with attention of a GGUF file. Recurrent layers have 0.
pub(super) fn kv_heads(file: &Gguf, key: &str) -> Result<usize> {
    let all = kv_heads_by_layer(file, key)?;
    let count = all.iter().copied().find(|count| *count > 0).unwrap_or(0);
    match all.iter().find(|other| ![0, count].contains(other)) {
        None => Ok(count),
        Some(other) => {
            let expected =
                format!("{count}, or 0 in layers without attention (other sizes are not supported)");
            Err(Error::bad_key(file.tensors.path(), key, other, expected))
        }
    }
}

/// Reads a list of key-value heads, or the number of all layers.
fn kv_heads_by_layer(file: &Gguf, key: &str) -> Result<Vec<usize>> {
    if file.is_array(key) { file.require(key) } else { Ok(vec![file.require(key)?]) }
}
