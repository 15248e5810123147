//! Qwen 2 and 2.5 (Qwen team, 2024): Llama's block with biases in the projections of queries, keys and values.

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::{
    BiasRule, BiasRules, DecoderBlock, DecoderConfig, Family, FeedForward, ForwardContext, LayerWeights,
    Projections,
};
use crate::model::llama::LlamaBlock;
use crate::ops::norm::RmsNorm;
use crate::tap::Probe;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::Matrix;

/// Weights of one block.
#[derive(Clone, Debug)]
pub(crate) struct Qwen2Block {
    /// `[d]`
    pub(crate) attn_norm: RmsNorm,
    /// The matrices of attention.
    pub(crate) attn: Projections,
    /// Feed-forward half of the block.
    pub(crate) ffn: FeedForward,
}

impl DecoderBlock for Qwen2Block {
    const FAMILY: Family = Family {
        architecture: "qwen2",
        gguf_names: &["qwen2"],
        model_types: &["qwen2"],
        gguf_pairing: RopePairing::Half,
        biases: BiasRules { qkv: BiasRule::Always, ..BiasRules::NONE },
        ..LlamaBlock::FAMILY
    };

    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        Ok(Self {
            attn_norm: w.norm("attn_norm", c.hidden_size)?,
            attn: Projections::load(c, w)?,
            ffn: FeedForward::load(c, w)?,
        })
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        let (n, c) = (p.n, p.c);
        let norm = t.tap(AttnNorm, n.rms_norm(x, &self.attn_norm));
        let q = t.tap(Q, c.heads(self.attn.q(n, &norm)));
        let k = t.tap(K, c.heads(self.attn.k(n, &norm)));
        let v = t.tap(V, c.heads(self.attn.v(n, &norm)));
        let q = t.tap(QRope, p.rotate(&q));
        let k = t.tap(KRope, p.rotate(&k));
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
