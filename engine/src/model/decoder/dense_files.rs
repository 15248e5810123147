//! Layers without experts in the files of a model with experts.

use serde_json::Value;

use crate::error::Result;
use crate::format::Gguf;
use crate::model::decoder::DenseLayers;
use crate::model::json::Config;

/// Keys of the layers without experts in `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DenseFiles {
    /// All layers have experts.
    Never,
    /// The number of first layers without experts.
    First(&'static str),
    /// Qwen's list `mlp_only_layers`, and the interval of layers with experts, `decoder_sparse_step`.
    Listed,
    /// ERNIE's keys of the first and last layer with experts, and their interval.
    Ernie,
    /// Llama 4's list of layers with experts, or their interval, and a feed-forward size of the other layers.
    Interleaved,
}

impl DenseFiles {
    /// Reads the layers without experts of a `config.json`.
    pub(super) fn in_json(self, file: &Config, n_layers: usize) -> Result<Option<DenseLayers>> {
        if self != DenseFiles::Listed {
            const EXPECTED: &str = "absent, or experts in all layers (this architecture has no such key)";
            file.only(LISTED, &[Value::Array(Vec::new())], EXPECTED)?;
            file.only(STEP, &[1.into()], EXPECTED)?;
        }
        let listed = layer_kinds(file, n_layers)?.filter(|_| self != DenseFiles::Never);
        let layers: Vec<bool> = match self {
            DenseFiles::Never => return Ok(None),
            _ if listed.is_some() => listed.unwrap_or_default(),
            DenseFiles::First(key) => first_layers(file.optional_usize(key)?.unwrap_or(0), n_layers),
            DenseFiles::Listed => listed_layers(file, n_layers)?,
            DenseFiles::Ernie => {
                let (first, every) =
                    (file.require_usize("moe_layer_start_index")?, file.require_usize("moe_layer_interval")?);
                if every == 0 {
                    return Err(file.bad_key("moe_layer_interval", 0, "1 or more layers"));
                }
                let last = match file.get("moe_layer_end_index").and_then(Value::as_i64) {
                    Some(-1) | None => n_layers,
                    Some(_) => file.require_usize("moe_layer_end_index")?,
                };
                let has_experts =
                    |layer: usize| (first..=last).contains(&layer) && (layer + 1).is_multiple_of(every);
                (0..n_layers).map(|layer| !has_experts(layer)).collect()
            }
            DenseFiles::Interleaved => {
                let every = file.optional_usize(INTERVAL)?.unwrap_or(1);
                interleaved_layers(file, every, n_layers)?
            }
        };
        let ffn_key =
            if self == DenseFiles::Interleaved { "intermediate_size_mlp" } else { "intermediate_size" };
        let ffn_size = || file.require_usize(ffn_key);
        layers.contains(&true).then(|| Ok(DenseLayers { ffn_size: ffn_size()?, layers })).transpose()
    }

    /// Reads the layers without experts of a GGUF file.
    pub(super) fn in_gguf(
        self,
        file: &Gguf,
        architecture: &str,
        n_layers: usize,
    ) -> Result<Option<DenseLayers>> {
        let first = match self {
            DenseFiles::Never | DenseFiles::Interleaved => 0,
            _ => file.optional(&format!("{architecture}.leading_dense_block_count"))?.unwrap_or(0),
        };
        let layers = match self {
            DenseFiles::Interleaved => {
                let every = file.require::<usize>(&format!("{architecture}.{INTERVAL}"))?;
                (1..=n_layers).map(|layer| every == 0 || !layer.is_multiple_of(every)).collect()
            }
            _ => first_layers(first, n_layers),
        };
        let ffn_size = || file.require(&format!("{architecture}.feed_forward_length"));
        layers.contains(&true).then(|| Ok(DenseLayers { ffn_size: ffn_size()?, layers })).transpose()
    }
}

/// Reads the list of kinds of layers, if there is one: true for each layer without experts.
fn layer_kinds(file: &Config, n_layers: usize) -> Result<Option<Vec<bool>>> {
    const KEY: &str = "mlp_layer_types";
    let kinds = file.texts(KEY)?;
    let is_dense = |kind: &&str| match *kind {
        "dense" => Ok(true),
        "sparse" => Ok(false),
        found => Err(file.bad_key(KEY, found, "\"dense\" or \"sparse\"")),
    };
    match kinds.len() {
        0 => Ok(None),
        count if count == n_layers => kinds.iter().map(is_dense).collect::<Result<_>>().map(Some),
        count => {
            let expected = format!("one for each of {n_layers} layers");
            Err(file.bad_key(KEY, format!("{count} entries"), expected))
        }
    }
}

/// Key of the layers without experts.
const LISTED: &str = "mlp_only_layers";

/// Key of the interval of layers with experts.
const STEP: &str = "decoder_sparse_step";

/// Returns flags that are true for the layers without experts in Qwen's files.
fn listed_layers(file: &Config, n_layers: usize) -> Result<Vec<bool>> {
    let every = file.optional_usize(STEP)?.unwrap_or(1);
    if every == 0 {
        return Err(file.bad_key(STEP, 0, "1 or more layers"));
    }
    let mut layers: Vec<bool> = (1..=n_layers).map(|layer| !layer.is_multiple_of(every)).collect();
    let Some(listed) = file.get(LISTED) else { return Ok(layers) };
    let indices = listed.as_array().map(Vec::as_slice).unwrap_or_default();
    for index in indices {
        match index.as_u64().and_then(|layer| layers.get_mut(usize::try_from(layer).ok()?)) {
            Some(is_dense) => *is_dense = true,
            None => return Err(file.bad_key(LISTED, listed, format!("layers from 0 to {}", n_layers - 1))),
        }
    }
    match listed.is_array() {
        true => Ok(layers),
        false => Err(file.bad_key(LISTED, listed, "a list of layers")),
    }
}

/// Key of the interval of layers with experts in Llama 4's files.
const INTERVAL: &str = "interleave_moe_layer_step";

/// Returns flags that are true for the layers without experts in Llama 4's files.
fn interleaved_layers(file: &Config, every: usize, n_layers: usize) -> Result<Vec<bool>> {
    const LISTED: &str = "moe_layers";
    let Some(listed) = file.get(LISTED) else {
        return match every {
            0 => Err(file.bad_key(INTERVAL, 0, "1 or more layers")),
            _ => Ok((1..=n_layers).map(|layer| !layer.is_multiple_of(every)).collect()),
        };
    };
    let mut layers = vec![true; n_layers];
    for index in listed.as_array().map(Vec::as_slice).unwrap_or_default() {
        match index.as_u64().and_then(|layer| layers.get_mut(usize::try_from(layer).ok()?)) {
            Some(is_dense) => *is_dense = false,
            None => return Err(file.bad_key(LISTED, listed, format!("layers from 0 to {}", n_layers - 1))),
        }
    }
    match listed.is_array() {
        true => Ok(layers),
        false => Err(file.bad_key(LISTED, listed, "a list of layers")),
    }
}

/// Returns flags that are true for the first layers.
fn first_layers(first: usize, n_layers: usize) -> Vec<bool> {
    (0..n_layers).map(|layer| layer < first).collect()
}
