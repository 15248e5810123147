//! Layers with a recurrent state in place of keys and values, in the files of a model.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::cache::RecurrentSizes;
use crate::model::decoder::delta::{DeltaLayout, DeltaSizes};
use crate::model::decoder::{StateSpaceSizes, delta_files};
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
        /// Channels, C: the hidden size.
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
                RecurrentSizes { channels, kept: kernel - 1, matrices: [0; 3] }
            }
            RecurrentMixer::StateSpace(sizes) => RecurrentSizes {
                channels: sizes.channels(),
                kept: sizes.kernel - 1,
                matrices: [sizes.heads, sizes.head_dim, sizes.columns],
            },
            RecurrentMixer::DeltaRule(sizes) => sizes.state(),
        }
    }

    /// Checks the sizes.
    pub(super) fn check(&self, file: &Path) -> Result<()> {
        match *self {
            RecurrentMixer::Convolution { kernel, .. } => check_kernel(file, kernel)?,
            RecurrentMixer::StateSpace(StateSpaceSizes { heads, head_dim, columns, kernel, .. }) => {
                check_kernel(file, kernel)?;
                let sizes = [
                    ("number of heads of a recurrence", heads),
                    ("head size of a recurrence", head_dim),
                    ("columns of a state", columns),
                ];
                size::check(file, &sizes)?;
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
    /// Granite 4's Mamba-2.
    GraniteHybrid,
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
            RecurrentFiles::GraniteHybrid => &["linear_attention", "mamba"],
            RecurrentFiles::DeltaRule(_) => &["linear_attention"],
        }
    }

    /// Reads the recurrent layers of a `config.json`, if there are any.
    pub(super) fn in_json(self, file: &Config, n_layers: usize) -> Result<Option<RecurrentLayers>> {
        let kinds = file.texts(LAYER_TYPES)?;
        let layers = match kinds.is_empty() {
            true => self.unlisted(file, n_layers)?,
            false => kinds.iter().map(|kind| self.layer_types().contains(kind)).collect(),
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
            RecurrentFiles::GraniteHybrid => RecurrentMixer::StateSpace(state_space_in_json(file)?),
            RecurrentFiles::DeltaRule(layout) => RecurrentMixer::DeltaRule(delta_files::sizes(file, layout)?),
        };
        mixer.check(file.path())?;
        Ok(Some(RecurrentLayers { layers, mixer }))
    }

    /// Returns true if attention layers apply RoPE. In a Granite `config.json`, `position_embedding_type` is then `rope`.
    pub(super) fn rotates_in_json(self, file: &Config) -> Result<bool> {
        match self {
            RecurrentFiles::Lfm2 | RecurrentFiles::DeltaRule(_) => Ok(true),
            RecurrentFiles::GraniteHybrid => {
                Ok(file.optional_str("position_embedding_type")? == Some("rope"))
            }
        }
    }

    /// Returns true if attention layers apply RoPE. A Granite GGUF file without RoPE has `rope.scaling.finetuned` = false.
    pub(super) fn rotates_in_gguf(self, file: &Gguf, architecture: &str) -> Result<bool> {
        match self {
            RecurrentFiles::Lfm2 | RecurrentFiles::DeltaRule(_) => Ok(true),
            RecurrentFiles::GraniteHybrid => {
                Ok(file.optional(&format!("{architecture}.rope.scaling.finetuned"))?.unwrap_or(true))
            }
        }
    }

    /// Reads the recurrent layers of a `config.json` without `layer_types`.
    fn unlisted(self, file: &Config, n_layers: usize) -> Result<Vec<bool>> {
        match self {
            RecurrentFiles::GraniteHybrid => Ok(vec![true; n_layers]),
            RecurrentFiles::DeltaRule(_) => delta_files::layers(file, n_layers),
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

    /// Reads the recurrent layers of a GGUF file; `None` if it has none. These are the layers without key-value heads or,
    /// with a delta rule, those that `attention.recurrent_layers` or `full_attention_interval` marks.
    pub(super) fn in_gguf(
        self,
        file: &Gguf,
        architecture: &str,
        n_layers: usize,
        hidden_size: usize,
    ) -> Result<Option<RecurrentLayers>> {
        let key = |name: &str| format!("{architecture}.{name}");
        let kv_heads_key = key("attention.head_count_kv");
        let kv_heads = kv_heads_by_layer(file, &kv_heads_key)?;
        let layers = match kv_heads.len() {
            _ if matches!(self, RecurrentFiles::DeltaRule(_)) => {
                delta_files::layers_in_gguf(file, architecture, n_layers)?
            }
            1 => vec![kv_heads[0] == 0; n_layers],
            count if count == n_layers => kv_heads.iter().map(|count| *count == 0).collect(),
            count => {
                let (found, expected) =
                    (format!("{count} entries"), format!("one for each of {n_layers} layers"));
                return Err(Error::bad_key(file.tensors.path(), &kv_heads_key, found, expected));
            }
        };
        if !layers.contains(&true) {
            return Ok(None);
        }
        let mixer = match self {
            RecurrentFiles::Lfm2 => RecurrentMixer::Convolution {
                channels: hidden_size,
                kernel: file.require(&key("shortconv.l_cache"))?,
                has_bias: false,
            },
            RecurrentFiles::GraniteHybrid => {
                RecurrentMixer::StateSpace(state_space_in_gguf(file, architecture, hidden_size)?)
            }
            RecurrentFiles::DeltaRule(layout) => {
                RecurrentMixer::DeltaRule(delta_files::sizes_in_gguf(file, architecture, layout)?)
            }
        };
        mixer.check(file.tensors.path())?;
        Ok(Some(RecurrentLayers { layers, mixer }))
    }
}

/// Reads the sizes of Mamba-2 in a `config.json`.
fn state_space_in_json(file: &Config) -> Result<StateSpaceSizes> {
    file.only("mamba_n_groups", &[1.into()], "1 (several groups of heads are not supported)")?;
    if let Some(limit) = file.get("time_step_limit") {
        let is_open =
            limit.as_array().is_some_and(|limit| limit.first().and_then(Value::as_f64) == Some(0.0));
        let has_end = limit.as_array().and_then(|limit| limit.get(1)).and_then(Value::as_f64);
        if !is_open || has_end.is_some_and(f64::is_finite) {
            return Err(file.bad_key("time_step_limit", limit, "no limit (limited steps are not supported)"));
        }
    }
    let (heads, inner) = (file.require_usize("mamba_n_heads")?, expanded(file)?);
    let head_dim = match file.optional_str("mamba_d_head") {
        Ok(Some("auto")) if heads > 0 => inner / heads,
        _ => file.require_usize("mamba_d_head")?,
    };
    if heads.checked_mul(head_dim) != Some(inner) {
        let expected = format!("heads of {inner} values together: mamba_expand times the hidden size");
        return Err(file.bad_key("mamba_n_heads", heads, expected));
    }
    Ok(StateSpaceSizes {
        heads,
        head_dim,
        columns: file.require_usize("mamba_d_state")?,
        kernel: file.require_usize("mamba_d_conv")?,
        has_conv_bias: file.optional_bool("mamba_conv_bias")?.unwrap_or(true),
        has_bias: file.optional_bool("mamba_proj_bias")?.unwrap_or(false),
    })
}

/// Returns the number of values of all heads of Mamba-2.
fn expanded(file: &Config) -> Result<usize> {
    let (factor, hidden_size) = (file.require_usize("mamba_expand")?, file.require_usize("hidden_size")?);
    let product = factor.checked_mul(hidden_size);
    product.ok_or_else(|| file.bad_key("mamba_expand", factor, "a small whole number"))
}

/// Reads the sizes of Mamba-2 in a GGUF file.
fn state_space_in_gguf(file: &Gguf, architecture: &str, hidden_size: usize) -> Result<StateSpaceSizes> {
    let key = |name: &str| format!("{architecture}.ssm.{name}");
    let refuse = |name: &str, found: usize, expected: String| {
        Err(Error::bad_key(file.tensors.path(), &key(name), found, expected))
    };
    let [groups, inner, heads]: [usize; 3] = [
        file.optional(&key("group_count"))?.unwrap_or(1),
        file.require(&key("inner_size"))?,
        file.require(&key("time_step_rank"))?,
    ];
    if groups != 1 {
        return refuse("group_count", groups, "1 (several groups of heads are not supported)".into());
    }
    if inner != 2 * hidden_size {
        return refuse(
            "inner_size",
            inner,
            format!("{}, twice the hidden size, as in llama.cpp", 2 * hidden_size),
        );
    }
    if heads == 0 || !inner.is_multiple_of(heads) {
        return refuse("time_step_rank", heads, format!("a number of heads that divides {inner}"));
    }
    Ok(StateSpaceSizes {
        heads,
        head_dim: inner / heads,
        columns: file.require(&key("state_size"))?,
        kernel: file.require(&key("conv_kernel"))?,
        has_conv_bias: true,
        has_bias: false,
    })
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

/// Reads the numbers of key-value heads: one for each layer, or a single one for all layers.
fn kv_heads_by_layer(file: &Gguf, key: &str) -> Result<Vec<usize>> {
    if file.is_array(key) { file.require(key) } else { Ok(vec![file.require(key)?]) }
}
