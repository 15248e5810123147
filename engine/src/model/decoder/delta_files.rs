//! Settings of linear attention with a gated delta rule in the files of a model.

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::decoder::delta::{DeltaLayout, DeltaSizes};
use crate::model::decoder::layer_sizes::{GgufLayers, all_but};
use crate::model::json::Config;
use crate::model::size;
use crate::ops::l2_norm::L2Norm;

/// Epsilon of the norm of queries and keys in transformers. It does not depend on the file's epsilon.
const NORM_EPS: f32 = 1e-6;

/// Key of the interval of layers with attention.
const FULL_EVERY: &str = "full_attention_interval";

/// Interval of layers with attention in files that do not state it.
const INTERVAL: usize = 4;

/// Checks the numbers of heads.
pub(super) fn check(file: &Path, sizes: DeltaSizes) -> Result<()> {
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

/// Reads the sizes of a `config.json`.
pub(super) fn sizes(file: &Config, layout: DeltaLayout) -> Result<DeltaSizes> {
    let key = file.require_usize("linear_key_head_dim")?;
    Ok(DeltaSizes {
        key_heads: file.require_usize("linear_num_key_heads")?,
        heads: file.require_usize("linear_num_value_heads")?,
        key,
        value: file.require_usize("linear_value_head_dim")?,
        kernel: file.require_usize("linear_conv_kernel_dim")?,
        norm: L2Norm { width: key, eps: NORM_EPS, is_least: false },
        layout,
    })
}

/// Reads which layers have linear attention, from a `config.json` that does not list the kinds of layers.
pub(super) fn layers(file: &Config, n_layers: usize) -> Result<Vec<bool>> {
    Ok(all_but(file.optional_interval(FULL_EVERY)?.unwrap_or(INTERVAL), n_layers))
}

/// Reads which layers of a GGUF file have linear attention: from a flag for each layer, or from the interval of the
/// other layers.
pub(super) fn layers_in_gguf(layers: &GgufLayers) -> Result<Vec<bool>> {
    match layers.listed("attention.recurrent_layers")? {
        Some(flags) => Ok(flags),
        None => Ok(all_but(layers.optional_interval(FULL_EVERY)?.unwrap_or(INTERVAL), layers.count)),
    }
}

/// Reads the sizes of a GGUF file. Value heads have the same width as key heads.
pub(super) fn sizes_in_gguf(file: &Gguf, architecture: &str, layout: DeltaLayout) -> Result<DeltaSizes> {
    let key = |name: &str| format!("{architecture}.{name}");
    let width: usize = file.require(&key("ssm.state_size"))?;
    let heads: usize = file.require(&key("ssm.time_step_rank"))?;
    let (inner_key, expected) = (key("ssm.inner_size"), heads.saturating_mul(width));
    match file.require::<usize>(&inner_key)? {
        inner if inner == expected => {}
        inner => {
            let expected = format!("{expected}: {heads} heads of values as wide as keys");
            return Err(Error::bad_key(file.tensors.path(), &inner_key, inner, expected));
        }
    }
    let eps = file.require(&key("attention.layer_norm_rms_epsilon"))?;
    Ok(DeltaSizes {
        key_heads: file.require(&key("ssm.group_count"))?,
        heads,
        key: width,
        value: width,
        kernel: file.require(&key("ssm.conv_kernel"))?,
        norm: L2Norm { width, eps, is_least: false },
        layout,
    })
}
