//! Shared code of the Llama family's decoders: embeddings, the stack of blocks, the last norm, the vocabulary
//! projection, and parts of a block.

mod block;
mod branch_norms;
mod cache_scales;
pub(crate) mod columns;
mod config;
mod config_gguf;
mod config_json;
mod config_llama2c;
mod context;
mod delta;
mod delta_files;
mod dense_files;
mod expert_files;
mod expert_scores_gguf;
mod family;
mod feed_forward;
mod latent;
mod latent_files;
mod layer_embeddings;
mod layer_sizes;
mod layer_variants;
mod load;
mod load_experts;
mod mixture;
mod multipliers;
mod names;
mod norm;
mod recurrent;
mod rope_json;
mod shared_expert;
mod short_conv;
mod state_space;
mod state_space_files;
pub(crate) mod streams;
mod temperature_files;
mod yarn;

pub(crate) use block::FeedForwardHalf;
pub use block::StandardBlock;
pub(crate) use block::{BlockShape, FfnShape, HalfNorms, ParallelHalves, ParallelOrder, QkNorm};
pub(crate) use branch_norms::BranchNorms;
pub(crate) use config::DenseLayers;
pub use config::{BiasFlags, DecoderConfig};
pub(crate) use config::{ExpertsConfig, SlidingWindow};
pub use context::ForwardContext;
pub(crate) use delta::DeltaLayout;
pub(crate) use dense_files::DenseFiles;
pub(crate) use expert_files::{ExpertFiles, ExpertPresence, SharedExpertFiles};
pub(crate) use family::{
    BiasRule, BiasRules, NumberKey, OuterNames, RopeExtras, SlidingDefaults, SlidingRope,
    inverse_root_of_head_dim,
};
pub use family::{Family, Positions};
pub(crate) use feed_forward::FeedForward;
pub(crate) use latent::{LatentAttention, LatentSizes};
pub(crate) use layer_embeddings::LayerEmbeddings;
pub(crate) use layer_variants::LayerVariants;
pub use load::LayerWeights;
pub(crate) use mixture::{ExpertBiases, Mixture};
pub(crate) use multipliers::BranchMultipliers;
pub(crate) use names::SHARED_EXPERTS;
pub use norm::{Norm, NormKind};
pub(crate) use recurrent::{RecurrentFiles, RecurrentLayers, RecurrentMixer};
pub(crate) use shared_expert::SharedExpert;
pub(crate) use short_conv::GatedConvolution;
pub(crate) use state_space::{StateSpaceLayer, StateSpaceSizes};
pub(crate) use state_space_files::StateSpaceFiles;
pub(crate) use streams::StreamProjections;
pub(crate) use streams::StreamSettings;
pub(crate) use temperature_files::TemperatureFiles;

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::attention::capped;
use crate::model::cache::{KvLayer, LayerState, RecurrentLayer};
use crate::model::weights::{arrive, arrive_rows, expect};
use crate::model::{Dimensions, Model, ModelPass, rows_for_head};
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::attention::Mask;
use crate::ops::rope::Rope;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// One transformer block of an architecture: its weights and its forward pass.
pub trait DecoderBlock: Clone + Send + Sync + Sized + 'static {
    /// Loads the weights of a layer.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self>;

    /// Computes the residual stream after the block: `[T, d]` to `[T, d]`.
    fn forward(&self, x: &Tensor, pass: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor;

    /// Returns the matrices, with names for messages.
    fn matrices(&self) -> Vec<(&'static str, &Matrix)>;
}

/// A decoder: configuration and weights.
#[derive(Clone, Debug)]
pub struct Decoder<B> {
    /// Name of the architecture in dumps.
    pub architecture: &'static str,
    /// Sizes and constants.
    pub config: DecoderConfig,
    /// `[V, d]`
    pub token_embd: Matrix,
    /// Per-layer embeddings, if there are any.
    pub layer_embeddings: Option<LayerEmbeddings>,
    /// Projections of the embeddings to several residual streams, and of these streams after the last layer, if there
    /// are several.
    pub streams: Option<StreamProjections>,
    /// The transformer blocks, in order.
    pub layers: Vec<B>,
    /// `[d]`
    pub output_norm: Norm,
    /// `[V, d]`
    pub output: Matrix,
    /// `[V]`
    pub output_bias: Option<Vec<f32>>,
    /// `[offset + context length, d]`, for learned positions
    pub position_embd: Option<Matrix>,
    /// `[d]`
    pub embedding_norm: Option<Norm>,
    /// Slopes of ALiBi, `[H]`, for models with it.
    pub(crate) slopes: Option<Vec<f32>>,
}

impl<B> Decoder<B> {
    /// Returns the model with each block converted by `block`.
    pub fn with_blocks<C>(self, block: impl Fn(B) -> C) -> Decoder<C> {
        Decoder {
            layers: self.layers.into_iter().map(block).collect(),
            architecture: self.architecture,
            config: self.config,
            token_embd: self.token_embd,
            layer_embeddings: self.layer_embeddings,
            streams: self.streams,
            output_norm: self.output_norm,
            output: self.output,
            output_bias: self.output_bias,
            position_embd: self.position_embd,
            embedding_norm: self.embedding_norm,
            slopes: self.slopes,
        }
    }
}

impl<B: DecoderBlock> Model for Decoder<B> {
    fn architecture(&self) -> &'static str {
        self.architecture
    }

    fn dimensions(&self) -> Dimensions {
        let c = &self.config;
        Dimensions {
            vocab_size: c.vocab_size,
            context_length: c.context_length,
            n_layers: self.layers.len(),
            hidden_size: c.hidden_size,
            n_heads: c.n_heads,
            head_dim: c.head_dim,
            kv_width: c.cache_widths()[0],
            value_width: c.cache_widths()[1],
            rope_pairing: (c.positions == Positions::Rotary).then_some(c.rope.pairing),
            experts: c.experts.as_ref().map_or(0, |experts| experts.count),
            expert_groups: c.experts.as_ref().and_then(|experts| experts.routing.groups),
        }
    }

    fn outer_matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let per_layer = self.layer_embeddings.iter();
        let per_layer = per_layer.flat_map(|all| {
            [("per_layer_token_embd", &all.table), ("per_layer_model_proj", &all.projection)]
        });
        let positions = self.position_embd.iter().map(|table| ("position_embd", table));
        let own = [("token_embd", &self.token_embd), ("output", &self.output)];
        let streams = self.streams.iter().flat_map(StreamProjections::matrices);
        own.into_iter().chain(positions).chain(per_layer).chain(streams).collect()
    }

    fn layer_matrices(&self, layer: usize) -> Vec<(&'static str, &Matrix)> {
        self.layers[layer].matrices()
    }

    fn head(&self) -> &Matrix {
        &self.output
    }

    fn window(&self, layer: usize) -> Option<usize> {
        let c = &self.config;
        c.sliding.as_ref().filter(|_| c.slides(layer)).map(|sliding| sliding.window)
    }

    fn has_chunks(&self) -> bool {
        self.config.sliding.as_ref().is_some_and(|sliding| sliding.is_chunk)
    }

    fn cache_widths(&self, layer: usize) -> [usize; 2] {
        match &self.config.variants {
            Some(variants) if variants.shares(&self.config, layer) => [0, 0],
            Some(_) => [self.config.head_sizes(layer).iter().product(); 2],
            None => self.config.cache_widths(),
        }
    }

    fn runs_in_parts(&self) -> bool {
        self.config.variants.is_none()
    }

    fn layer_state(&self, layer: usize) -> LayerState {
        match self.config.recurrent_mixer(layer) {
            Some(mixer) if self.config.shape.has_parallel_mixer => LayerState::Both(
                KvLayer::with_scales(cache_scales::of_layer(&self.layers[layer])),
                RecurrentLayer::new(mixer.state()),
            ),
            Some(mixer) => LayerState::Recurrent(RecurrentLayer::new(mixer.state())),
            None => LayerState::Kv(KvLayer::with_scales(cache_scales::of_layer(&self.layers[layer]))),
        }
    }

    fn activation(&self) -> Activation {
        self.config.activation
    }

    fn set_gelu(&mut self, form: Activation) -> bool {
        self.config.activation.replace_gelu(form)
    }

    fn has_adapter(&self) -> bool {
        self.config.has_adapter
    }

    fn set_adapter(&mut self) -> bool {
        self.config.has_adapter = true;
        true
    }

    fn rereads_beyond(&self) -> Option<usize> {
        self.config.rope.long_beyond()
    }

    fn pass_within<'m>(
        &'m self,
        n: &'m dyn Numerics,
        positions: Range<usize>,
        length: usize,
    ) -> Box<dyn ModelPass + 'm> {
        let c = &self.config;
        let embeddings = Arc::new(OnceLock::new());
        let seeing = |rope: Option<&Rope>, window| ForwardContext {
            n,
            c,
            rope: rope.map(|rope| n.rope_table(&rope.within(length), positions.clone())),
            mask: Mask { position: positions.start, window, chunks: self.has_chunks().then_some(0) },
            shared: Mutex::new(None),
            embeddings: embeddings.clone(),
            slopes: self.slopes.as_deref(),
        };
        let rotates = (0..c.n_layers).any(|layer| c.rotates(layer));
        let both = |rope, window| [None, rotates.then_some(rope)].map(|rope| seeing(rope, window));
        let sliding = c.sliding.as_ref().map(|sliding| both(&sliding.rope, Some(sliding.window)));
        Box::new(DecoderPass {
            model: self,
            positions: positions.clone(),
            full: both(&c.rope, None),
            sliding,
        })
    }
}

/// A pass of a decoder. Layers with full attention and layers with a window have separate shared data, each with
/// and without RoPE.
struct DecoderPass<'m, B> {
    model: &'m Decoder<B>,
    positions: Range<usize>,
    full: [ForwardContext<'m>; 2],
    sliding: Option<[ForwardContext<'m>; 2]>,
}

impl<B: DecoderBlock> ModelPass for DecoderPass<'_, B> {
    /// Returns the tokens' embeddings, scaled if the architecture scales them, with learned positions if it has them.
    fn embed(&self, tokens: &[u32], t: &mut Probe) -> Tensor {
        let ForwardContext { n, c, .. } = self.full[0];
        arrive_rows(&self.model.token_embd, tokens);
        let rows = n.embed(&self.model.token_embd, tokens);
        let rows = match (c.embed_scale, &self.model.embedding_norm) {
            (Some(by), _) => n.scale(&rows, by),
            (None, Some(norm)) => norm.of(n, &rows),
            (None, None) => rows,
        };
        let x = t.tap(
            Embed,
            match (&self.model.position_embd, c.positions) {
                (Some(table), Positions::Learned { offset }) => {
                    let rows_of = self.positions.clone().map(|position| (position + offset) as u32);
                    n.add(&rows, &n.embed(table, &rows_of.collect::<Vec<_>>()))
                }
                _ => rows,
            },
        );
        if let Some(per_layer) = &self.model.layer_embeddings {
            let tokens = &per_layer.rows_of(tokens);
            arrive_rows(&per_layer.table, tokens);
            arrive(
                format_args!("the embeddings of layers"),
                &[("per_layer_model_proj", &per_layer.projection)],
            );
            self.full[0].embeddings.get_or_init(|| per_layer.of(tokens, &x, n));
        }
        match &self.model.streams {
            Some(streams) => {
                arrive(format_args!("the residual streams"), &streams.matrices().collect::<Vec<_>>());
                streams.begin(x, n, t)
            }
            None => x,
        }
    }

    fn expect(&self, layers: Range<usize>) {
        expect(self.model.layers[layers].iter().map(DecoderBlock::matrices));
    }

    fn layer(&self, layer: usize, x: &Tensor, t: &mut Probe, state: &mut LayerState) -> Tensor {
        t.enter_layer(layer);
        arrive(format_args!("layer {layer}"), &self.model.layers[layer].matrices());
        let c = &self.model.config;
        let passes = self.sliding.as_ref().filter(|_| c.slides(layer)).unwrap_or(&self.full);
        self.model.layers[layer].forward(x, &passes[usize::from(c.rotates(layer))], t, state)
    }

    fn head(&self, x: Tensor, t: &mut Probe) -> Tensor {
        let ForwardContext { n, c, .. } = self.full[0];
        let model = self.model;
        arrive(format_args!("the head"), &[("output", &model.output)]);
        // llama.cpp projects the streams of all tokens.
        let x = match &model.streams {
            Some(streams) => streams.end(&x, n, t),
            None => x,
        };
        let x = rows_for_head(x, t);
        let norm = t.tap(FinalNorm, model.output_norm.of(n, &x));
        let bias = model.output_bias.as_deref();
        let logits = n.linear_of_pass(&norm, &model.output, bias, self.positions.len());
        let scaled = c.logits_scale.map(|by| n.scale(&logits, by));
        t.tap(Logits, capped(n, scaled.unwrap_or(logits), c.logits_cap))
    }
}

/// A matrix, and its bias if it has one.
#[derive(Clone, Debug)]
pub struct Projection {
    /// `[outputs, inputs]`
    pub weight: Matrix,
    /// `[outputs]`
    pub(crate) bias: Option<Vec<f32>>,
    /// `[inputs]`: factors of the inputs of a quantised weight; `None` for none
    pub(crate) input_factors: Option<Vec<f32>>,
}

impl Projection {
    /// Computes `x · wᵀ`, plus the bias if there is one: `[T, inputs]` to `[T, outputs]`. If inputs have factors, `x` is
    /// multiplied by them first.
    pub(crate) fn of(&self, n: &dyn Numerics, x: &Tensor) -> Tensor {
        let scaled = self.input_factors.as_ref().map(|factors| n.column_scaled(x, factors));
        let x = scaled.as_ref().unwrap_or(x);
        match &self.bias {
            Some(bias) => n.affine(x, &self.weight, bias),
            None => n.linear(x, &self.weight),
        }
    }

    /// Splits a fused projection of queries, keys and values whose rows are grouped by key-value head: the query heads
    /// of the group, the key and the value.
    fn of_groups(&self, c: &DecoderConfig) -> [Self; 3] {
        let per_group = c.n_heads / c.n_kv_heads;
        let heads = |range: Range<usize>| {
            let in_group = |group: usize| range.clone().map(move |head| group * (per_group + 2) + head);
            let heads = (0..c.n_kv_heads).flat_map(in_group);
            let rows: Vec<usize> =
                heads.flat_map(|head| head * c.head_dim..(head + 1) * c.head_dim).collect();
            self.gathered(&rows)
        };
        [heads(0..per_group), heads(per_group..per_group + 1), heads(per_group + 1..per_group + 2)]
    }

    /// Returns a projection with only these outputs, in this order.
    fn gathered(&self, rows: &[usize]) -> Self {
        let bias = self.bias.as_ref().map(|bias| rows.iter().map(|&row| bias[row]).collect());
        Self { weight: self.weight.gathered(rows), bias, input_factors: self.input_factors.clone() }
    }

    /// Returns a projection with the `rows` outputs that start at `first`.
    fn part(&self, first: usize, rows: usize) -> Self {
        let bias = self.bias.as_ref().map(|bias| bias[first..][..rows].to_vec());
        let input_factors = self.input_factors.clone();
        Self { weight: self.weight.rows_from(first, rows), bias, input_factors }
    }
}

/// Matrices of attention.
#[derive(Clone, Debug)]
pub struct Projections {
    /// `[H·D, d]`
    pub q: Projection,
    /// `[Hkv·D, d]`
    pub k: Projection,
    /// `[Hkv·D, d]`
    pub v: Projection,
    /// `[d, H·D]`
    pub output: Projection,
    /// `[H·D, d]`, for the gate of attention's output, if there is one
    pub(crate) gate: Option<Projection>,
}

impl Projections {
    /// Computes queries: `[T, d]` to `[T, H·D]`.
    pub fn q(&self, n: &dyn Numerics, x: &Tensor) -> Tensor {
        self.q.of(n, x)
    }

    /// Computes keys: `[T, d]` to `[T, Hkv·D]`.
    pub fn k(&self, n: &dyn Numerics, x: &Tensor) -> Tensor {
        self.k.of(n, x)
    }

    /// Computes values: `[T, d]` to `[T, Hkv·D]`.
    pub fn v(&self, n: &dyn Numerics, x: &Tensor) -> Tensor {
        self.v.of(n, x)
    }

    /// Applies the output projection to merged heads: `[T, H·D]` to `[T, d]`.
    pub fn output(&self, n: &dyn Numerics, x: &Tensor) -> Tensor {
        self.output.of(n, x)
    }

    /// Returns the matrices, with names for messages.
    pub(crate) fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let all =
            [("attn_q", &self.q), ("attn_k", &self.k), ("attn_v", &self.v), ("attn_output", &self.output)];
        let gate = self.gate.iter().map(|gate| ("attn_q", gate));
        all.into_iter().chain(gate).map(|(name, projection)| (name, &projection.weight)).collect()
    }
}
