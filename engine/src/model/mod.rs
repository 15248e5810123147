//! Models: configuration, weights, and one forward pass for each architecture.

mod adapter;
pub(crate) mod arcee;
mod attention;
pub mod bitnet;
pub(crate) mod bloom;
mod cache;
pub(crate) mod cohere;
pub(crate) mod cohere2;
pub mod decoder;
pub(crate) mod deepseek_v2;
pub(crate) mod deepseek_v3;
pub mod dequantisation;
pub(crate) mod dots1;
pub(crate) mod ernie4_5;
pub(crate) mod ernie4_5_moe;
pub(crate) mod exaone4;
pub(crate) mod falcon;
pub(crate) mod falcon_h1;
mod files;
pub(crate) mod gemma;
pub(crate) mod gemma2;
pub mod gemma3;
pub(crate) mod gemma3n;
pub(crate) mod gemma4;
pub(crate) mod glm;
pub(crate) mod glm4;
pub(crate) mod glm4_moe;
pub(crate) mod glm4_moe_lite;
pub mod gpt2;
pub(crate) mod gpt_bigcode;
pub(crate) mod gpt_neox;
pub(crate) mod gpt_oss;
pub(crate) mod gptj;
pub(crate) mod granite;
pub(crate) mod granite_hybrid;
pub(crate) mod granite_moe;
pub(crate) mod helium;
pub(crate) mod hunyuan_dense;
pub(crate) mod jais2;
mod json;
pub mod lfm2;
pub mod llama;
pub(crate) mod llama4;
mod loaders;
mod longrope;
mod meta_files;
pub(crate) mod minimax_m2;
pub(crate) mod ministral3;
pub(crate) mod mistral;
pub(crate) mod mixtral;
pub(crate) mod nemotron;
pub(crate) mod nemotron_h;
pub(crate) mod olmo;
pub(crate) mod olmo2;
pub(crate) mod olmo3;
pub(crate) mod olmoe;
pub(crate) mod opt;
pub(crate) mod phi;
pub(crate) mod phi3;
pub(crate) mod quantisation;
pub(crate) mod qwen2;
pub(crate) mod qwen2_moe;
pub mod qwen3;
pub(crate) mod qwen3_5;
pub mod qwen3_moe;
pub(crate) mod qwen3_next;
pub(crate) mod seed_oss;
mod shards;
mod size;
pub(crate) mod smollm3;
mod special_ids;
pub(crate) mod stablelm;
pub(crate) mod starcoder2;
mod ternary;
mod weight_scheme;
mod weights;
mod wrapper_names;

pub use adapter::AdapterFiles;
pub use cache::LayerState;
pub(crate) use cache::{KvLayer, ModelState};
pub use files::ModelFiles;
pub use json::Config;
pub use loaders::{
    LoadedModel, architectures, is_known_model_type, may_have_expert_groups, may_have_expert_scores,
};
pub use longrope::{LongRope, LongRopeModel};
pub use ternary::{I2sLayout, KernelConfig, TernaryFiles};
pub use weight_scheme::WeightScheme;

pub use crate::ops::activation::Activation;
use crate::ops::experts::ExpertGroups;

use std::ops::Range;

use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::tap::Probe;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::Matrix;

/// Sizes and layout of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimensions {
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Number of positions that the model was trained for.
    pub context_length: usize,
    /// Number of transformer blocks.
    pub n_layers: usize,
    /// Number of values per token between two layers: d.
    pub hidden_size: usize,
    /// Number of query heads: H.
    pub n_heads: usize,
    /// Number of values in one head: D.
    pub head_dim: usize,
    /// Number of key values per token in one layer: Hkv · D. With latent attention: the size of a latent plus the
    /// rotated part of the keys.
    pub kv_width: usize,
    /// Number of values per token in one layer: Hkv · D. With latent attention: the size of a latent.
    pub value_width: usize,
    /// RoPE pairing: the layout of q and k; `None` without RoPE.
    pub rope_pairing: Option<RopePairing>,
    /// Number of experts in each layer: E; 0 without experts.
    pub experts: usize,
    /// Groups of experts, if a token may choose from some groups only.
    pub expert_groups: Option<ExpertGroups>,
}

impl Dimensions {
    /// Returns the number of key-value heads: Hkv.
    pub fn kv_heads(&self) -> usize {
        self.kv_width.checked_div(self.head_dim).unwrap_or(0)
    }

    /// Returns the number of values in a row of cached keys and in a row of cached values: the size of a head, or that
    /// of the latent which all heads share.
    pub fn cached_rows(&self) -> [usize; 2] {
        match self.has_latents() {
            true => [self.kv_width, self.value_width],
            false => [self.head_dim; 2],
        }
    }

    /// Returns true if the cache stores latents: a key then has a rotated part that a value lacks.
    pub fn has_latents(&self) -> bool {
        self.kv_width != self.value_width
    }
}

/// Returns the rows of the residual stream for which logits are computed: all rows if the tap reads all logits,
/// otherwise the last row.
fn rows_for_head(x: Tensor, t: &Probe) -> Tensor {
    let looked_at = t.wants(Point::FinalNorm) || t.wants(Point::Logits);
    if looked_at { x } else { x.last_row() }
}

/// A model that can be run.
pub trait Model: Send + Sync {
    /// Returns the architecture's name in dumps and tolerances.
    fn architecture(&self) -> &'static str;

    /// Returns the sizes of the model and the layout of its layers.
    fn dimensions(&self) -> Dimensions;

    /// Returns the weight matrices outside of layers, with names for messages.
    fn outer_matrices(&self) -> Vec<(&'static str, &Matrix)>;

    /// Returns the weight matrices of a layer, with names for messages.
    fn layer_matrices(&self, layer: usize) -> Vec<(&'static str, &Matrix)>;

    /// Returns all weight matrices, with names for messages.
    fn matrices(&self) -> Vec<(String, &Matrix)> {
        let outer = self.outer_matrices().into_iter().map(|(name, matrix)| (name.to_owned(), matrix));
        let of_layer = |layer: usize| {
            let named = self.layer_matrices(layer).into_iter();
            named.map(move |(name, matrix)| (format!("{name} of layer {layer}"), matrix))
        };
        outer.chain((0..self.dimensions().n_layers).flat_map(of_layer)).collect()
    }

    /// Returns the vocabulary projection, `[V, d]`.
    fn head(&self) -> &Matrix;

    /// Returns the number of latest positions that a token sees in a layer, itself included; `None` for all.
    fn window(&self, layer: usize) -> Option<usize> {
        _ = layer;
        None
    }

    /// Returns true if windows are chunks of positions: a token sees itself and earlier tokens of its own chunk only.
    fn has_chunks(&self) -> bool {
        false
    }

    /// Returns the widths of a cached key and of a cached value of one token in a layer.
    fn cache_widths(&self, layer: usize) -> [usize; 2] {
        _ = layer;
        let Dimensions { kv_width, value_width, .. } = self.dimensions();
        [kv_width, value_width]
    }

    /// Returns true if a layer can run alone, given only a residual stream. In some models, layers also read the
    /// tokens, or the keys of earlier layers.
    fn runs_in_parts(&self) -> bool {
        true
    }

    /// Returns the state of a layer before the first token.
    fn layer_state(&self, layer: usize) -> LayerState {
        _ = layer;
        LayerState::Kv(KvLayer::default())
    }

    /// Returns the activation function of the feed-forward block.
    fn activation(&self) -> Activation;

    /// Sets the form of GELU, regardless of what the files state. Returns `false` if the model has no GELU.
    fn set_gelu(&mut self, form: Activation) -> bool;

    /// Returns true if the weights contain a merged adapter. Engines then agree only in `f32` arithmetic.
    fn has_adapter(&self) -> bool {
        false
    }

    /// Records that the weights contain a merged adapter; returns `false` if the architecture does not support one.
    fn set_adapter(&mut self) -> bool {
        false
    }

    /// Returns the sequence length beyond which all tokens must be recomputed, because LongRoPE switches to its long
    /// factors. `None` if the KV cache stays valid at every length.
    fn rereads_beyond(&self) -> Option<usize> {
        None
    }

    /// Starts a forward pass over the tokens at `positions`.
    fn pass<'m>(&'m self, n: &'m dyn Numerics, positions: Range<usize>) -> Box<dyn ModelPass + 'm> {
        let length = positions.end;
        self.pass_within(n, positions, length)
    }

    /// Starts a forward pass over the tokens at `positions` of a sequence with `length` tokens.
    fn pass_within<'m>(
        &'m self,
        n: &'m dyn Numerics,
        positions: Range<usize>,
        length: usize,
    ) -> Box<dyn ModelPass + 'm>;
}

/// Parts of a forward pass, each computed from given inputs. Rotations and masks are computed once for all layers.
///
/// T = tokens of the pass, d = hidden size, V = vocabulary.
pub trait ModelPass {
    /// Computes the input of layer 0: `[T, d]`.
    fn embed(&self, tokens: &[u32], t: &mut Probe) -> Tensor;

    /// Announces which layers are needed next, in order, so that their weights can be downloaded.
    fn expect(&self, layers: Range<usize>) {
        _ = layers;
    }

    /// Computes a layer, `[T, d]` to `[T, d]`, and updates the layer's state.
    ///
    /// The caller has checked that the layer exists, that `x` and `state` have its sizes, and that `state` ends at the
    /// first position of the pass.
    fn layer(&self, layer: usize, x: &Tensor, t: &mut Probe, state: &mut LayerState) -> Tensor;

    /// Computes the logits of every token, `[T, V]`, from the last layer's output, `[T, d]`; only those of the last
    /// token, `[1, V]`, if no tap reads them.
    fn head(&self, x: Tensor, t: &mut Probe) -> Tensor;
}
