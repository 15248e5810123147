//! Gemma 2 (Gemma team, 2024): Gemma 3's block without norms of queries and keys. Scores and logits are soft-capped,
//! and every other layer has a sliding window.

use serde_json::{Value, json};

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::{
    BiasRules, DecoderBlock, DecoderConfig, Family, FeedForward, ForwardContext, LayerWeights, NumberKey,
    Projections, SlidingDefaults,
};
use crate::model::gemma3::{Gemma3Block, attn_scale};
use crate::ops::norm::RmsNorm;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Weights of one block.
#[derive(Clone, Debug)]
pub(crate) struct Gemma2Block {
    /// `[d]`
    pub(crate) attn_norm: RmsNorm,
    /// The matrices of attention.
    pub(crate) attn: Projections,
    /// `[d]`
    pub(crate) attn_post_norm: RmsNorm,
    /// Feed-forward half of the block.
    pub(crate) ffn: FeedForward,
    /// `[d]`
    pub(crate) ffn_post_norm: RmsNorm,
}

impl DecoderBlock for Gemma2Block {
    const FAMILY: Family = Family {
        architecture: "gemma2",
        gguf_names: &["gemma2"],
        model_types: &["gemma2"],
        attn_scale: |c| attn_scale(c, 46),
        stated: &[
            NumberKey {
                json: "attn_logit_softcapping",
                gguf: "attn_logit_softcapping",
                default: Some(50.0),
                set: |config, cap| config.attn_cap = Some(cap),
            },
            NumberKey {
                json: "final_logit_softcapping",
                gguf: "final_logit_softcapping",
                default: Some(30.0),
                set: |config, cap| config.logits_cap = Some(cap),
            },
        ],
        sliding: Some(SlidingDefaults { full_every: Some(2), ..SlidingDefaults::ALL }),
        config_defaults,
        biases: BiasRules::NONE,
        ..Gemma3Block::FAMILY
    };

    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        Ok(Self {
            attn_norm: w.norm("attn_norm", c.hidden_size)?,
            attn: Projections::load(c, w)?,
            attn_post_norm: w.norm("post_attention_norm", c.hidden_size)?,
            ffn: FeedForward::load(c, w)?,
            ffn_post_norm: w.norm("post_ffw_norm", c.hidden_size)?,
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

/// Returns the defaults of transformers' `Gemma2Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 256_000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": true,
    })
}
