//! Llama (Touvron et al., 2023): RMSNorm, rotary positions, grouped queries, SwiGLU, no biases.

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::KvLayer;
use crate::model::decoder::{Block, Decoder, DecoderConfig, FeedForward, LayerWeights, Pass};
use crate::tap::Probe;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::Matrix;

/// A Llama model.
pub type Llama = Decoder<LlamaBlock>;

/// The weights of one block.
#[derive(Clone, Debug)]
pub struct LlamaBlock {
    /// `[d]`
    pub attn_norm: Vec<f32>,
    /// `[H·D, d]`
    pub attn_q: Matrix,
    /// `[Hkv·D, d]`
    pub attn_k: Matrix,
    /// `[Hkv·D, d]`
    pub attn_v: Matrix,
    /// `[d, H·D]`
    pub attn_output: Matrix,
    /// The second half of the block.
    pub ffn: FeedForward,
}

impl Block for LlamaBlock {
    const ARCHITECTURE: &'static str = "llama";
    const GGUF_PAIRING: RopePairing = RopePairing::Interleaved;

    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let (q_width, kv_width) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        Ok(Self {
            attn_norm: w.vector("attn_norm", c.hidden_size)?,
            attn_q: w.matrix("attn_q", q_width, c.hidden_size)?,
            attn_k: w.matrix("attn_k", kv_width, c.hidden_size)?,
            attn_v: w.matrix("attn_v", kv_width, c.hidden_size)?,
            attn_output: w.matrix("attn_output", c.hidden_size, q_width)?,
            ffn: FeedForward::load(c, w)?,
        })
    }

    fn forward(&self, x: &Tensor, p: &Pass, t: &mut Probe, kv: &mut KvLayer) -> Tensor {
        let (n, c) = (p.n, p.c);
        let norm = t.tap(AttnNorm, n.rms_norm(x, &self.attn_norm, c.norm_eps));
        let q = t.tap(Q, c.heads(n.linear(&norm, &self.attn_q)));
        let k = t.tap(K, c.heads(n.linear(&norm, &self.attn_k)));
        let v = t.tap(V, c.heads(n.linear(&norm, &self.attn_v)));
        let q = t.tap(QRope, n.rotate(&q, &p.rope));
        let k = t.tap(KRope, n.rotate(&k, &p.rope));
        let context = p.attend(&q, k, v, t, kv);
        let out = t.tap(AttnOut, n.linear(&context, &self.attn_output));
        let h = t.tap(AttnResidual, n.add(x, &out));
        self.ffn.forward(&h, p, t)
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let mut all = self.ffn.matrices().to_vec();
        all.extend([("attn_q", &self.attn_q), ("attn_k", &self.attn_k), ("attn_v", &self.attn_v)]);
        all.push(("attn_output", &self.attn_output));
        all
    }
}
