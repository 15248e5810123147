//! Layers with a recurrent state in place of keys and values, in the files of a model.

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::cache::RecurrentSizes;
use crate::model::decoder::delta::DeltaSizes;
use crate::model::json::Config;
use crate::model::size;
use crate::ops::l2_norm::L2Norm;
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
    /// Linear attention with a gated delta rule.
    DeltaRule(DeltaSizes),
}

impl RecurrentMixer {
    /// Returns the sizes of a layer's state.
    pub(crate) fn state(&self) -> RecurrentSizes {
        match *self {
            RecurrentMixer::Convolution { channels, kernel, .. } => {
                RecurrentSizes { channels, kept: kernel - 1, matrices: [0; 3] }
            }
            RecurrentMixer::DeltaRule(sizes) => sizes.state(),
        }
    }

    /// Checks the sizes.
    pub(super) fn check(&self, file: &Path) -> Result<()> {
        match *self {
            RecurrentMixer::Convolution { kernel, .. } => check_kernel(file, kernel),
            RecurrentMixer::DeltaRule(sizes) => {
                check_kernel(file, sizes.kernel)?;
                check_heads(file, sizes)
            }
        }
    }
}

fn check_kernel(file: &Path, kernel: usize) -> Result<()> {
    match (1..=LONGEST_KERNEL).contains(&kernel) {
        true => Ok(()),
        false => Err(Error::bad_key(file, "kernel size", kernel, format!("1 to {LONGEST_KERNEL}"))),
    }
}

/// Checks the heads of linear attention.
fn check_heads(file: &Path, sizes: DeltaSizes) -> Result<()> {
    let DeltaSizes { key_heads, heads, key, value, .. } = sizes;
    let all = [
        ("number of key heads of linear attention", key_heads),
        ("number of value heads of linear attention", heads),
        ("key head size of linear attention", key),
        ("value head size of linear attention", value),
    ];
    size::check(file, &all)?;
    match heads.is_multiple_of(key_heads) {
        true => Ok(()),
        false => {
            let expected = format!("a divisor of the {heads} value heads");
            Err(Error::bad_key(file, all[0].0, key_heads, expected))
        }
    }
}

/// Keys of recurrent layers in the files of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecurrentFiles {
    /// LFM2's gated short convolution.
    Lfm2,
    /// Qwen3-Next's linear attention with a gated delta rule.
    DeltaRule,
}

/// Key of the kinds of layers in `config.json`.
const LAYER_TYPES: &str = "layer_types";

impl RecurrentFiles {
    /// Returns the names of recurrent layers in `layer_types`.
    pub(super) fn layer_types(self) -> &'static [&'static str] {
        match self {
            RecurrentFiles::Lfm2 => &["conv"],
            RecurrentFiles::DeltaRule => &["linear_attention"],
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
            RecurrentFiles::DeltaRule => {
                let key = file.require_usize("linear_key_head_dim")?;
                RecurrentMixer::DeltaRule(DeltaSizes {
                    key_heads: file.require_usize("linear_num_key_heads")?,
                    heads: file.require_usize("linear_num_value_heads")?,
                    key,
                    value: file.require_usize("linear_value_head_dim")?,
                    kernel: file.require_usize("linear_conv_kernel_dim")?,
                    norm: L2Norm { width: key, eps: 1e-6, is_least: false },
                })
            }
        };
        mixer.check(file.path())?;
        Ok(RecurrentLayers { layers, mixer })
    }

    /// Reads the recurrent layers of a `config.json` without a list of kinds.
    fn unlisted(self, file: &Config, n_layers: usize) -> Result<Vec<bool>> {
        match self {
            RecurrentFiles::DeltaRule => {
                const KEY: &str = "full_attention_interval";
                let every = file.require_usize(KEY)?;
                recurrent_but(every, n_layers).ok_or_else(|| file.bad_key(KEY, every, "1 or more layers"))
            }
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
            RecurrentFiles::DeltaRule => return delta_rule_in_gguf(file, architecture, n_layers),
        };
        mixer.check(file.tensors.path())?;
        Ok(RecurrentLayers { layers, mixer })
    }
}

/// Returns flags that are false for every n-th layer, which has attention; `None` for 0.
fn recurrent_but(every: usize, n_layers: usize) -> Option<Vec<bool>> {
    (every > 0).then(|| (1..=n_layers).map(|layer| !layer.is_multiple_of(every)).collect())
}

/// Reads the layers with linear attention of a GGUF file: a flag for each layer, or the interval of the other layers.
fn delta_rule_in_gguf(file: &Gguf, architecture: &str, n_layers: usize) -> Result<RecurrentLayers> {
    const INTERVAL: usize = 4;
    let key = |name: &str| format!("{architecture}.{name}");
    let (listed, every_key) = (key("attention.recurrent_layers"), key("full_attention_interval"));
    let layers = match file.is_array(&listed) {
        true => {
            let mut flags: Vec<bool> = file.require(&listed)?;
            if flags.len() < n_layers {
                let found = format!("{} entries", flags.len());
                let expected = format!("one for each of {n_layers} layers");
                return Err(Error::bad_key(file.tensors.path(), &listed, found, expected));
            }
            flags.truncate(n_layers);
            flags
        }
        false => {
            let every = file.optional(&every_key)?.unwrap_or(INTERVAL);
            let refuse = || Error::bad_key(file.tensors.path(), &every_key, every, "1 or more layers");
            recurrent_but(every, n_layers).ok_or_else(refuse)?
        }
    };
    let (width, heads): (usize, usize) =
        (file.require(&key("ssm.state_size"))?, file.require(&key("ssm.time_step_rank"))?);
    let inner: usize = file.require(&key("ssm.inner_size"))?;
    if heads == 0 || inner != heads.saturating_mul(width) {
        let expected = format!("{heads} · {width}: heads of values as wide as keys");
        return Err(Error::bad_key(file.tensors.path(), &key("ssm.inner_size"), inner, expected));
    }
    let mixer = RecurrentMixer::DeltaRule(DeltaSizes {
        key_heads: file.require(&key("ssm.group_count"))?,
        heads,
        key: width,
        value: width,
        kernel: file.require(&key("ssm.conv_kernel"))?,
        norm: L2Norm {
            width,
            eps: file.require(&key("attention.layer_norm_rms_epsilon"))?,
            is_least: false,
        },
    });
    mixer.check(file.tensors.path())?;
    Ok(RecurrentLayers { layers, mixer })
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
