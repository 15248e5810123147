//! What the decoders of the Llama family share: embeddings, a stack of blocks, a last norm, the vocabulary
//! projection; and the parts of a block that all of them have.

mod config;
mod load;

pub use config::DecoderConfig;
pub use load::LayerWeights;

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::{KvCache, KvLayer};
use crate::model::{Dimensions, Model};
use crate::numerics::Numerics;
use crate::ops::attention::Mask;
use crate::ops::rope::RopeTable;
use crate::tap::Probe;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::Matrix;

/// One transformer block of an architecture: its weights, and its diagram.
pub trait Block: Clone + Send + Sync + Sized + 'static {
    /// The architecture's name in GGUF files, `config.json` and dumps.
    const ARCHITECTURE: &'static str;
    /// How the q and k rows of its GGUF files are laid out.
    const GGUF_PAIRING: RopePairing;

    /// Reads the weights of a layer.
    ///
    /// # Errors
    /// If one is missing, of another shape, or of a type that cannot be used.
    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self>;

    /// `[T, d]` to `[T, d]`: the residual stream through the block.
    fn forward(&self, x: &Tensor, pass: &Pass, t: &mut Probe, kv: &mut KvLayer) -> Tensor;

    /// Its matrices, with names for messages.
    fn matrices(&self) -> Vec<(&'static str, &Matrix)>;
}

/// What all blocks of a pass share.
pub struct Pass<'m> {
    /// How to compute.
    pub n: &'m dyn Numerics,
    /// Sizes and constants.
    pub c: &'m DecoderConfig,
    /// Rotations for the positions of the pass.
    pub rope: RopeTable,
    /// Who sees whom.
    pub mask: Mask,
}

/// A decoder: configuration and weights.
#[derive(Clone, Debug)]
pub struct Decoder<B> {
    /// Sizes and constants.
    pub config: DecoderConfig,
    /// `[V, d]`
    pub token_embd: Matrix,
    /// The transformer blocks, in order.
    pub layers: Vec<B>,
    /// `[d]`
    pub output_norm: Vec<f32>,
    /// `[V, d]`
    pub output: Matrix,
}

impl<B: Block> Model for Decoder<B> {
    fn architecture(&self) -> &'static str {
        B::ARCHITECTURE
    }

    fn dimensions(&self) -> Dimensions {
        let c = &self.config;
        Dimensions {
            vocab_size: c.vocab_size,
            context_length: c.context_length,
            n_layers: self.layers.len(),
            kv_width: c.n_kv_heads * c.head_dim,
            rope_pairing: c.rope.pairing,
        }
    }

    fn matrices(&self) -> Vec<(String, &Matrix)> {
        let mut all = vec![("token_embd".to_owned(), &self.token_embd), ("output".to_owned(), &self.output)];
        for (layer, block) in self.layers.iter().enumerate() {
            let named = block.matrices().into_iter();
            all.extend(named.map(|(name, matrix)| (format!("{name} of layer {layer}"), matrix)));
        }
        all
    }

    fn forward(&self, n: &dyn Numerics, t: &mut Probe, tokens: &[u32], cache: &mut KvCache) -> Tensor {
        let c = &self.config;
        let positions = cache.len()..cache.len() + tokens.len();
        let mask = Mask { position: positions.start };
        let pass = Pass { n, c, rope: n.rope_table(&c.rope, positions), mask };
        let mut x = t.tap(Embed, n.embed(&self.token_embd, tokens));
        for (layer, (block, kv)) in self.layers.iter().zip(&mut cache.layers).enumerate() {
            t.enter_layer(layer);
            x = block.forward(&x, &pass, t, kv);
        }
        let norm = t.tap(FinalNorm, n.rms_norm(&x, &self.output_norm, c.norm_eps));
        t.tap(Logits, n.linear(&norm, &self.output))
    }
}

impl Pass<'_> {
    /// Attention from rotated queries and keys to merged heads: `[T, H, D]`, `[T, Hkv, D]` twice, to `[T, H·D]`.
    pub fn attend(&self, q: &Tensor, k: Tensor, v: Tensor, t: &mut Probe, kv: &mut KvLayer) -> Tensor {
        let n = self.n;
        let keys = t.tap(KCache, kv.take_keys(&n.to_cache(k)));
        let values = t.tap(VCache, kv.take_values(&n.to_cache(v)));
        let scores = t.tap(AttnScores, n.scores(q, &keys, self.c.attn_scale));
        let weights = t.tap(AttnWeights, n.softmax(&scores, self.mask));
        let context = t.tap(AttnContext, n.context(&weights, &values));
        kv.keep(keys, values);
        context
    }
}

/// The matrices of attention.
#[derive(Clone, Debug)]
pub struct Projections {
    /// `[H·D, d]`
    pub q: Matrix,
    /// `[Hkv·D, d]`
    pub k: Matrix,
    /// `[Hkv·D, d]`
    pub v: Matrix,
    /// `[d, H·D]`
    pub output: Matrix,
}

impl Projections {
    /// Its matrices, with names for messages.
    pub fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        vec![("attn_q", &self.q), ("attn_k", &self.k), ("attn_v", &self.v), ("attn_output", &self.output)]
    }
}

/// The feed-forward half of a block: RMSNorm and SwiGLU. F = feed-forward size.
#[derive(Clone, Debug)]
pub struct FeedForward {
    /// `[d]`
    pub norm: Vec<f32>,
    /// `[F, d]`
    pub gate: Matrix,
    /// `[F, d]`
    pub up: Matrix,
    /// `[d, F]`
    pub down: Matrix,
}

impl FeedForward {
    /// Its matrices, with names for messages.
    pub fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        vec![("ffn_gate", &self.gate), ("ffn_up", &self.up), ("ffn_down", &self.down)]
    }

    /// `x` with the block's output added: `[T, d]` to `[T, d]`.
    pub fn forward(&self, x: &Tensor, pass: &Pass, t: &mut Probe) -> Tensor {
        let n = pass.n;
        let norm = t.tap(FfnNorm, n.rms_norm(x, &self.norm, pass.c.norm_eps));
        let gate = t.tap(FfnGate, n.linear(&norm, &self.gate));
        let up = t.tap(FfnUp, n.linear(&norm, &self.up));
        let act = t.tap(FfnAct, n.silu_gate(&gate, &up));
        let out = t.tap(FfnOut, n.linear(&act, &self.down));
        t.tap(BlockOut, n.add(x, &out))
    }
}
