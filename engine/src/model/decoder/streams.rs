//! Several residual streams (AltUp): their settings in both formats, and the projections that begin and end them.

use serde_json::Value;

use crate::checkpoint::Point::*;
use crate::error::{Error, Result};
use crate::model::decoder::DecoderConfig;
use crate::model::decoder::columns::{columns, joined};
use crate::model::decoder::layer_sizes::GgufLayers;
use crate::model::decoder::names::DecoderNames;
use crate::model::json::Config;
use crate::model::size;
use crate::model::weights::Weights;
use crate::numerics::Numerics;
use crate::ops::sparse_gate::GateSparsity;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Share of gate values that are zero in the first layers of released models, and the number of these layers.
const USUAL_SPARSITY: (f32, usize) = (0.95, 10);

/// Largest number of streams.
const MOST_STREAMS: usize = 64;

/// Settings of a model with several residual streams.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StreamSettings {
    /// Number of streams, n.
    pub(crate) count: usize,
    /// Index of the stream that layers compute.
    pub(crate) active: usize,
    /// Rank of the low-rank residual.
    pub(crate) rank: usize,
    /// True if the active stream is multiplied by factors before it gates a layer's embeddings.
    pub(crate) scales_active: bool,
    /// Threshold of each layer's gate; `None` for layers whose gate is not sparse.
    pub(crate) sparsity: Vec<Option<GateSparsity>>,
}

impl StreamSettings {
    /// Reads the keys of a `config.json`.
    pub(super) fn in_json(file: &Config, n_layers: usize) -> Result<Self> {
        let settings = Self {
            count: file.require_usize("altup_num_inputs")?,
            active: file.require_usize("altup_active_idx")?,
            rank: file.require_usize("laurel_rank")?,
            scales_active: file.optional_bool("altup_correct_scale")?.unwrap_or(true),
            sparsity: sparsity_in_json(file, n_layers)?,
        };
        match settings.fault() {
            None => Ok(settings),
            Some(([key, _], found, expected)) => Err(file.bad_key(key, found, expected)),
        }
    }

    /// Reads the keys of a GGUF file. Its gates use the standard deviation of a sample, as llama.cpp does.
    pub(super) fn in_gguf(layers: &GgufLayers) -> Result<Self> {
        const SPARSITY: &str = "activation_sparsity_scale";
        let (file, path) = (layers.file, layers.file.tensors.path());
        let of_sample = |sparsity: GateSparsity| GateSparsity { is_of_sample: true, ..sparsity };
        let of_layer = |&quantile: &f32| match quantile {
            f32::NEG_INFINITY => Ok(None),
            quantile if quantile.is_finite() => Ok(Some(GateSparsity { quantile, is_of_sample: true })),
            _ => {
                Err(Error::bad_key(path, &layers.key(SPARSITY), quantile, "a number, or -inf for all gates"))
            }
        };
        let sparsity = match layers.listed::<f32>(SPARSITY)? {
            Some(quantiles) => quantiles.iter().map(of_layer).collect::<Result<_>>()?,
            None => usual_sparsity(layers.count, 0).into_iter().map(|one| one.map(of_sample)).collect(),
        };
        let settings = Self {
            count: file.require(&layers.key("altup.num_inputs"))?,
            active: file.require(&layers.key("altup.active_idx"))?,
            rank: file
                .tensors
                .get("blk.0.laurel_l.weight")
                .and_then(|tensor| tensor.shape.first())
                .map_or(1, |rank| *rank),
            scales_active: true,
            sparsity,
        };
        match settings.fault() {
            None => Ok(settings),
            Some(([_, key], found, expected)) => Err(Error::bad_key(path, &layers.key(key), found, expected)),
        }
    }

    /// Returns the first invalid setting: its keys, its value, and the expected value.
    fn fault(&self) -> Option<([&'static str; 2], usize, String)> {
        match self {
            Self { count, .. } if !(2..=MOST_STREAMS).contains(count) => {
                Some((["altup_num_inputs", "altup.num_inputs"], *count, format!("2 to {MOST_STREAMS}")))
            }
            Self { active, count, .. } if active >= count => {
                Some((["altup_active_idx", "altup.active_idx"], *active, format!("less than {count}")))
            }
            Self { rank, .. } if !(1..=size::MAX_SIZE).contains(rank) => {
                Some((["laurel_rank", "laurel_rank"], *rank, format!("1 to {}", size::MAX_SIZE)))
            }
            _ => None,
        }
    }
}

/// Returns the sparsity of models with more than `least` layers whose files do not state it.
fn usual_sparsity(n_layers: usize, least: usize) -> Vec<Option<GateSparsity>> {
    let (share, sparse) = USUAL_SPARSITY;
    (0..n_layers)
        .map(|layer| (layer < sparse && n_layers > least).then(|| GateSparsity::of(share))?)
        .collect()
}

/// Reads the share of gate values that are zero in each layer.
fn sparsity_in_json(file: &Config, n_layers: usize) -> Result<Vec<Option<GateSparsity>>> {
    const KEY: &str = "activation_sparsity_pattern";
    let Some(stated) = file.get(KEY) else { return Ok(usual_sparsity(n_layers, USUAL_SPARSITY.1)) };
    let refuse =
        |found: &Value| file.bad_key(KEY, found, format!("a share below 1 for each of {n_layers} layers"));
    let shares = stated.as_array().filter(|shares| shares.len() == n_layers).ok_or_else(|| refuse(stated))?;
    let of_layer = |share: &Value| match share.as_f64().map(|share| share as f32) {
        // As in transformers, a gate is sparse only if its share is above 0.
        Some(none) if none <= 0.0 => Ok(None),
        Some(share) => GateSparsity::of(share).map(Some).ok_or_else(|| refuse(stated)),
        None => Err(refuse(stated)),
    };
    shares.iter().map(of_layer).collect()
}

/// Projections of the embeddings to all streams except the first, and of these streams after the last layer.
#[derive(Clone, Debug)]
pub struct StreamProjections {
    /// `[d, d]` each
    pub(crate) inputs: Vec<Matrix>,
    /// `[d, d]` each
    pub(crate) outputs: Vec<Matrix>,
}

impl StreamProjections {
    /// Loads the projections, if the model has several streams.
    pub(super) fn load(c: &DecoderConfig, w: &mut Weights, names: DecoderNames) -> Result<Option<Self>> {
        let Some(StreamSettings { count, .. }) = &c.streams else { return Ok(None) };
        let mut all = |[hugging_face, gguf]: [&str; 2]| -> Result<Vec<Matrix>> {
            match names.projections(hugging_face) {
                None => w.stacked(&format!("{gguf}.weight"), count - 1, c.hidden_size, c.hidden_size),
                Some(prefix) => (0..count - 1)
                    .map(|part| w.matrix(&format!("{prefix}.{part}.weight"), c.hidden_size, c.hidden_size))
                    .collect(),
            }
        };
        Ok(Some(Self {
            inputs: all(["altup_projections", "altup_proj"])?,
            outputs: all(["altup_unembed_projections", "altup_unembd_proj"])?,
        }))
    }

    /// Computes the streams of the embeddings: `[T, d]` to `[T, n·d]`.
    pub(super) fn begin(&self, x: Tensor, n: &dyn Numerics, t: &mut Probe) -> Tensor {
        let projected = self.inputs.iter().map(|matrix| n.linear(&x, matrix)).collect::<Vec<_>>();
        let projected = t.tap(AltupProjected, joined(n, &projected));
        t.tap(AltupStreams, after_first(&x, &n.match_magnitude(&projected, &x), n))
    }

    /// Computes the mean of the streams: `[T, n·d]` to `[T, d]`.
    pub(super) fn end(&self, x: &Tensor, n: &dyn Numerics, t: &mut Probe) -> Tensor {
        let count = self.outputs.len() + 1;
        let others = self.outputs.iter().zip(1..);
        let projected: Vec<Tensor> =
            others.map(|(matrix, part)| n.linear(&stream(x, part, count, n), matrix)).collect();
        let projected = t.tap(AltupUnembedded, joined(n, &projected));
        let matched = n.match_magnitude(&projected, &stream(x, 0, count, n));
        t.tap(AltupMean, n.mean_of_streams(&after_first(x, &matched, n), count))
    }

    /// Returns the matrices, with names for messages.
    pub(super) fn matrices(&self) -> impl Iterator<Item = (&'static str, &Matrix)> {
        let inputs = self.inputs.iter().map(|matrix| ("altup_proj", matrix));
        inputs.chain(self.outputs.iter().map(|matrix| ("altup_unembd_proj", matrix)))
    }
}

/// Returns one stream: `[T, n·d]` to `[T, d]`.
pub(crate) fn stream(x: &Tensor, part: usize, count: usize, n: &dyn Numerics) -> Tensor {
    let d = x.row_len() / count;
    columns(n, x, part * d, d)
}

/// Joins the first d values of each row of `first` with all values of `others`, `[T, k·d]`: `[T, (1 + k)·d]`.
pub(crate) fn after_first(first: &Tensor, others: &Tensor, n: &dyn Numerics) -> Tensor {
    let (own, rest) = (first.row_len(), others.row_len());
    // `first` has all streams, or is the first one.
    let d = if own > rest { own - rest } else { own };
    let width = d + rest;
    n.rearranged(&[first, others], &[first.rows(), width], &|flat| match (flat / width, flat % width) {
        (row, at) if at < d => (0, row * own + at),
        (row, at) => (1, row * rest + at - d),
    })
}
