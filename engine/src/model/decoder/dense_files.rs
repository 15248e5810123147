//! Layers without experts in the files of a model with experts.

use serde_json::Value;

use crate::error::Result;
use crate::format::Gguf;
use crate::model::decoder::DenseLayers;
use crate::model::decoder::layer_sizes::all_but;
use crate::model::decoder::state_space_files::{self, SingleHalf};
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
    /// The kinds of all layers (Nemotron-H). In GGUF files, all feed-forward blocks of a model with experts have experts.
    Kinds,
    /// Llama 4's list of layers with experts, or the interval of these layers, and the key of the other layers'
    /// feed-forward size.
    Interleaved(&'static str),
}

impl DenseFiles {
    /// Reads which layers of a `config.json` have no experts.
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
            DenseFiles::Kinds => {
                let kinds = state_space_files::kinds(file)?;
                kinds.into_iter().map(|kind| kind != SingleHalf::Experts).collect()
            }
            DenseFiles::Listed => {
                let others = all_but(file.optional_interval(STEP)?.unwrap_or(1), n_layers);
                let listed = file.marked_layers(LISTED, n_layers)?.unwrap_or_else(|| vec![false; n_layers]);
                others.into_iter().zip(listed).map(|(is_other, is_listed)| is_other || is_listed).collect()
            }
            DenseFiles::Ernie => {
                let first = file.require_usize("moe_layer_start_index")?;
                let others = all_but(file.optional_interval("moe_layer_interval")?.unwrap_or(1), n_layers);
                let last = match file.get("moe_layer_end_index").and_then(Value::as_i64) {
                    Some(-1) | None => n_layers,
                    Some(_) => file.require_usize("moe_layer_end_index")?,
                };
                let is_dense = |(layer, other)| other || !(first..=last).contains(&layer);
                others.into_iter().enumerate().map(is_dense).collect()
            }
            DenseFiles::Interleaved(_) => match file.marked_layers("moe_layers", n_layers)? {
                Some(sparse) => sparse.into_iter().map(|has_experts| !has_experts).collect(),
                None => all_but(file.optional_interval(INTERVAL)?.unwrap_or(1), n_layers),
            },
        };
        let ffn_key = match self {
            DenseFiles::Interleaved(key) => key,
            _ => "intermediate_size",
        };
        let ffn_size = || file.require_usize(ffn_key);
        layers.contains(&true).then(|| Ok(DenseLayers { ffn_size: ffn_size()?, layers })).transpose()
    }

    /// Reads which layers of a GGUF file have no experts.
    pub(super) fn in_gguf(
        self,
        file: &Gguf,
        architecture: &str,
        n_layers: usize,
    ) -> Result<Option<DenseLayers>> {
        let layers = match self {
            DenseFiles::Never | DenseFiles::Kinds => return Ok(None),
            DenseFiles::Interleaved(_) => {
                all_but(file.require(&format!("{architecture}.{INTERVAL}"))?, n_layers)
            }
            _ => {
                let key = format!("{architecture}.leading_dense_block_count");
                first_layers(file.optional(&key)?.unwrap_or(0), n_layers)
            }
        };
        let ffn_size = || file.require(&format!("{architecture}.feed_forward_length"));
        layers.contains(&true).then(|| Ok(DenseLayers { ffn_size: ffn_size()?, layers })).transpose()
    }
}

/// Reads the list of kinds of layers, if there is one. Returns true for each layer without experts.
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

/// Key of the interval of layers with experts in Llama 4's files.
const INTERVAL: &str = "interleave_moe_layer_step";

/// Returns flags that are true for the first layers.
fn first_layers(first: usize, n_layers: usize) -> Vec<bool> {
    (0..n_layers).map(|layer| layer < first).collect()
}
