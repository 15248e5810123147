//! OLMo 2 (OLMo team, 2024): Llama's block with norms after both halves instead of before them, one norm over all query
//! heads of a token, and one over all key heads.

use serde_json::{Value, json};

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::{
    BiasRules, DecoderBlock, DecoderConfig, Family, FeedForward, ForwardContext, LayerWeights, Projections,
    RopeExtras,
};
use crate::model::llama::LlamaBlock;
use crate::ops::norm::{Gain, RmsNorm};
use crate::ops::rope::RopeRounding;
use crate::tap::Probe;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::Matrix;

/// Weights of one block.
#[derive(Clone, Debug)]
pub(crate) struct Olmo2Block {
    /// The matrices of attention.
    pub(crate) attn: Projections,
    /// `[H · D]`, over all query heads together
    pub(crate) attn_q_norm: RmsNorm,
    /// `[Hkv · D]`, over all key heads together
    pub(crate) attn_k_norm: RmsNorm,
    /// `[d]`
    pub(crate) attn_post_norm: RmsNorm,
    /// Feed-forward half of the block.
    pub(crate) ffn: FeedForward,
    /// `[d]`
    pub(crate) ffn_post_norm: RmsNorm,
}

impl DecoderBlock for Olmo2Block {
    const FAMILY: Family = Family {
        architecture: "olmo2",
        gguf_names: &["olmo2"],
        model_types: &["olmo2"],
        gguf_pairing: RopePairing::Half,
        gain: Gain::WeightFirst,
        rope: RopeExtras { rounding: RopeRounding::Results, ..RopeExtras::NONE },
        config_defaults,
        layer_names: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        biases: BiasRules::NONE,
        ..LlamaBlock::FAMILY
    };

    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        Ok(Self {
            attn: Projections::load(c, w)?,
            attn_q_norm: w.norm("attn_q_norm", c.n_heads * c.head_dim)?,
            attn_k_norm: w.norm("attn_k_norm", c.n_kv_heads * c.head_dim)?,
            attn_post_norm: w.norm("post_attention_norm", c.hidden_size)?,
            ffn: FeedForward::without_norm(c, w)?,
            ffn_post_norm: w.norm("post_ffw_norm", c.hidden_size)?,
        })
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        let (n, c) = (p.n, p.c);
        let q = t.tap(Q, c.heads(self.attn.q(n, x)));
        let k = t.tap(K, c.heads(self.attn.k(n, x)));
        let v = t.tap(V, c.heads(self.attn.v(n, x)));
        let q = t.tap(QNorm, n.rms_norm(&q, &self.attn_q_norm));
        let k = t.tap(KNorm, n.rms_norm(&k, &self.attn_k_norm));
        let q = t.tap(QRope, p.rotate(&q));
        let k = t.tap(KRope, p.rotate(&k));
        let context = p.attend(&q, k, v, t, state);
        let out = t.tap(AttnOut, self.attn.output(n, &context));
        let out = t.tap(AttnPostNorm, n.rms_norm(&out, &self.attn_post_norm));
        let h = t.tap(AttnResidual, n.add(x, &out));
        let ffn = self.ffn.forward(&h, p, t);
        let ffn = t.tap(FfnPostNorm, n.rms_norm(&ffn, &self.ffn_post_norm));
        t.tap(BlockOut, n.add(&h, &ffn))
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        [self.attn.matrices(), self.ffn.matrices()].concat()
    }
}

/// Returns the defaults of transformers' `Olmo2Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 50_304,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
    })
}
