//! Qwen 3 (Qwen team, 2025): Llama's block with a norm of every query and key head before RoPE, and a head size that
//! does not follow from the hidden size.

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::{
    BiasRule, BiasRules, Decoder, DecoderBlock, DecoderConfig, Family, FeedForward, ForwardContext,
    LayerWeights, Projections,
};
use crate::model::llama;
use crate::ops::norm::RmsNorm;
use crate::tap::Probe;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::Matrix;

/// A Qwen 3 model.
pub type Qwen3 = Decoder<Qwen3Block>;

/// Weights of one block.
#[derive(Clone, Debug)]
pub struct Qwen3Block {
    /// `[d]`
    pub(crate) attn_norm: RmsNorm,
    /// The matrices of attention.
    pub(crate) attn: Projections,
    /// `[D]`, the same for every query head
    pub attn_q_norm: RmsNorm,
    /// `[D]`, the same for every key head
    pub attn_k_norm: RmsNorm,
    /// Feed-forward half of the block.
    pub(crate) ffn: FeedForward,
}

/// Settings of Qwen 3.
pub const FAMILY: Family = Family {
    architecture: "qwen3",
    gguf_names: &["qwen3"],
    model_types: &["qwen3"],
    gguf_pairing: RopePairing::Half,
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_bias"),
        mlp: BiasRule::Never,
    },
    ..llama::FAMILY
};

impl DecoderBlock for Qwen3Block {
    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        Ok(Self {
            attn_norm: w.norm("attn_norm", c.hidden_size)?,
            attn: Projections::load(c, w)?,
            attn_q_norm: w.norm("attn_q_norm", c.head_dim)?,
            attn_k_norm: w.norm("attn_k_norm", c.head_dim)?,
            ffn: FeedForward::load(c, w)?,
        })
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        let (n, c) = (p.n, p.c);
        let norm = t.tap(AttnNorm, n.rms_norm(x, &self.attn_norm));
        let q = t.tap(Q, c.heads(self.attn.q(n, &norm)));
        let k = t.tap(K, c.heads(self.attn.k(n, &norm)));
        let v = t.tap(V, c.heads(self.attn.v(n, &norm)));
        let q = t.tap(QNorm, n.rms_norm(&q, &self.attn_q_norm));
        let k = t.tap(KNorm, n.rms_norm(&k, &self.attn_k_norm));
        let q = t.tap(QRope, p.rotate(q));
        let k = t.tap(KRope, p.rotate(k));
        let context = p.attend(&q, k, v, t, state);
        let out = t.tap(AttnOut, self.attn.output(n, &context));
        let h = t.tap(AttnResidual, n.add(x, &out));
        let ffn = self.ffn.forward(&h, p, t);
        t.tap(BlockOut, n.add(&h, &ffn))
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        [self.attn.matrices(), self.ffn.matrices()].concat()
    }
}
