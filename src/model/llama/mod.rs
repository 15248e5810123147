//! Llama (Touvron et al., 2023): RMSNorm, rotary positions, SwiGLU, no biases.

mod config;
mod load;

pub use config::LlamaConfig;
pub use load::{from_gguf, from_hugging_face};

use crate::checkpoint::Point::*;
use crate::model::cache::{KvCache, KvLayer};
use crate::model::{Dimensions, Model};
use crate::numerics::Numerics;
use crate::ops::attention::Mask;
use crate::ops::rope::RopeTable;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// The architecture's name in GGUF files and dumps.
pub const ARCHITECTURE: &str = "llama";

/// A Llama model: configuration and weights.
#[derive(Clone, Debug)]
pub struct Llama {
    /// Sizes and constants.
    pub config: LlamaConfig,
    /// `[V, d]`
    pub token_embd: Matrix,
    /// The transformer blocks, in order.
    pub layers: Vec<LlamaLayer>,
    /// `[d]`
    pub output_norm: Vec<f32>,
    /// `[V, d]`
    pub output: Matrix,
}

/// The weights of one block. F = feed-forward size.
#[derive(Clone, Debug)]
pub struct LlamaLayer {
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
    /// `[d]`
    pub ffn_norm: Vec<f32>,
    /// `[F, d]`
    pub ffn_gate: Matrix,
    /// `[F, d]`
    pub ffn_up: Matrix,
    /// `[d, F]`
    pub ffn_down: Matrix,
}

/// What all layers of a pass share: rotations for its positions, and who sees whom.
struct Positions {
    rope: RopeTable,
    mask: Mask,
}

impl Llama {
    fn attention(
        &self,
        n: &dyn Numerics,
        t: &mut Probe,
        at: &Positions,
        w: &LlamaLayer,
        x: &Tensor,
        kv: &mut KvLayer,
    ) -> Tensor {
        let c = &self.config;
        let norm = t.tap(AttnNorm, n.rms_norm(x, &w.attn_norm, c.norm_eps));
        let q = t.tap(Q, c.heads(n.linear(&norm, &w.attn_q)));
        let k = t.tap(K, c.heads(n.linear(&norm, &w.attn_k)));
        let v = t.tap(V, c.heads(n.linear(&norm, &w.attn_v)));
        let q = t.tap(QRope, n.rotate(&q, &at.rope));
        let k = t.tap(KRope, n.rotate(&k, &at.rope));
        let keys = t.tap(KCache, kv.take_keys(&n.to_cache(k)));
        let values = t.tap(VCache, kv.take_values(&n.to_cache(v)));
        let scores = t.tap(AttnScores, n.scores(&q, &keys, c.attn_scale));
        let weights = t.tap(AttnWeights, n.softmax(&scores, at.mask));
        let context = t.tap(AttnContext, n.context(&weights, &values));
        kv.keep(keys, values);
        let out = t.tap(AttnOut, n.linear(&context, &w.attn_output));
        t.tap(AttnResidual, n.add(x, &out))
    }

    fn feed_forward(&self, n: &dyn Numerics, t: &mut Probe, w: &LlamaLayer, x: &Tensor) -> Tensor {
        let norm = t.tap(FfnNorm, n.rms_norm(x, &w.ffn_norm, self.config.norm_eps));
        let gate = t.tap(FfnGate, n.linear(&norm, &w.ffn_gate));
        let up = t.tap(FfnUp, n.linear(&norm, &w.ffn_up));
        let act = t.tap(FfnAct, n.silu_gate(&gate, &up));
        let out = t.tap(FfnOut, n.linear(&act, &w.ffn_down));
        t.tap(BlockOut, n.add(x, &out))
    }
}

impl Model for Llama {
    fn architecture(&self) -> &'static str {
        ARCHITECTURE
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
        for (layer, w) in self.layers.iter().enumerate() {
            let of_layer = [
                ("attn_q", &w.attn_q),
                ("attn_k", &w.attn_k),
                ("attn_v", &w.attn_v),
                ("attn_output", &w.attn_output),
                ("ffn_gate", &w.ffn_gate),
                ("ffn_up", &w.ffn_up),
                ("ffn_down", &w.ffn_down),
            ];
            all.extend(of_layer.map(|(name, matrix)| (format!("{name} of layer {layer}"), matrix)));
        }
        all
    }

    fn forward(&self, n: &dyn Numerics, t: &mut Probe, tokens: &[u32], cache: &mut KvCache) -> Tensor {
        let positions = cache.len()..cache.len() + tokens.len();
        let mask = Mask { position: positions.start };
        let at = Positions { rope: n.rope_table(&self.config.rope, positions), mask };
        let mut x = t.tap(Embed, n.embed(&self.token_embd, tokens));
        for (layer, (w, kv)) in self.layers.iter().zip(&mut cache.layers).enumerate() {
            t.enter_layer(layer);
            let h = self.attention(n, t, &at, w, &x, kv);
            x = self.feed_forward(n, t, w, &h);
        }
        let norm = t.tap(FinalNorm, n.rms_norm(&x, &self.output_norm, self.config.norm_eps));
        t.tap(Logits, n.linear(&norm, &self.output))
    }
}
