//! Settings of linear attention with a gated delta rule in the files of a model.

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::decoder::delta::{DeltaLayout, DeltaSizes};
use crate::model::decoder::layer_sizes::GgufLayers;
use crate::model::json::Config;
use crate::model::size;
use crate::ops::l2_norm::L2Norm;

/// Epsilon of the norm of queries and keys in transformers, whatever the file states for other norms.
const NORM_EPS: f32 = 1e-6;

/// Interval of layers with attention in GGUF files that do not state it.
const INTERVAL: usize = 4;

/// Checks the heads.
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

/// Reads the layers with linear attention of a `config.json` that does not list the kinds of layers.
pub(super) fn layers(file: &Config, n_layers: usize) -> Result<Vec<bool>> {
    const KEY: &str = "full_attention_interval";
    let every = file.require_usize(KEY)?;
    all_but(every, n_layers).ok_or_else(|| file.bad_key(KEY, every, "1 or more layers"))
}

/// Returns flags that are false for every n-th layer, which has attention; `None` for 0.
fn all_but(every: usize, n_layers: usize) -> Option<Vec<bool>> {
    (every > 0).then(|| (1..=n_layers).map(|layer| !layer.is_multiple_of(every)).collect())
}

/// Reads the layers with linear attention of a GGUF file: a flag for each layer, or the interval of the other layers.
pub(super) fn layers_in_gguf(layers: &GgufLayers) -> Result<Vec<bool>> {
    if let Some(flags) = layers.listed("attention.recurrent_layers")? {
        return Ok(flags);
    }
    let (file, key) = (layers.file, layers.key("full_attention_interval"));
    let every = file.optional(&key)?.unwrap_or(INTERVAL);
    all_but(every, layers.count)
        .ok_or_else(|| Error::bad_key(file.tensors.path(), &key, every, "1 or more layers"))
}

/// Reads the sizes of a GGUF file. Heads of values are as wide as those of keys.
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
