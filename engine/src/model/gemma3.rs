//! Gemma 3 (Gemma team, 2025): scaled embeddings, norms before and after both halves of the block, a norm of every
//! query and key head, GeGLU, and sliding-window layers between layers with full attention.

use serde_json::json;

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::{
    BiasRule, BiasRules, Decoder, DecoderBlock, DecoderConfig, Family, FeedForward, ForwardContext,
    LayerWeights, Projections, SlidingDefaults, SlidingRope,
};
use crate::model::llama;
use crate::ops::activation::Activation;
use crate::ops::attention::AttentionScale;
use crate::ops::norm::{Gain, RmsNorm};
use crate::ops::scaling::Multiplier;
use crate::tap::Probe;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::Matrix;

/// A Gemma 3 model; for multimodal models, the text part.
pub type Gemma3 = Decoder<Gemma3Block>;

/// Weights of one block.
#[derive(Clone, Debug)]
pub struct Gemma3Block {
    /// `[d]`
    pub attn_norm: RmsNorm,
    /// The matrices of attention.
    pub attn: Projections,
    /// `[D]`, the same for every query head
    pub attn_q_norm: RmsNorm,
    /// `[D]`, the same for every key head
    pub attn_k_norm: RmsNorm,
    /// `[d]`
    pub attn_post_norm: RmsNorm,
    /// Feed-forward half of the block.
    pub ffn: FeedForward,
    /// `[d]`
    pub ffn_post_norm: RmsNorm,
}

/// Settings of Gemma 3.
pub const FAMILY: Family = Family {
    architecture: "gemma3",
    gguf_names: &["gemma3"],
    model_types: &["gemma3_text", "gemma3"],
    gguf_pairing: RopePairing::Half,
    activation: Activation::GeluTanh,
    hidden_acts: &["gelu_pytorch_tanh"],
    gain: Gain::OnePlusWeight,
    embed_scale: |c| Some(Multiplier::Element((c.hidden_size as f32).sqrt())),
    attn_scale: |c| attn_scale(c, 62),
    sliding: Some(SlidingDefaults {
        full_every: Some(6),
        rope: SlidingRope::Own { key: "rope_local_base_freq", theta: 10_000.0 },
        ..SlidingDefaults::ALL
    }),
    config_defaults,
    layer_names: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_bias"),
        mlp: BiasRule::Never,
    },
    ..llama::FAMILY
};

impl DecoderBlock for Gemma3Block {
    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        Ok(Self {
            attn_norm: w.norm("attn_norm", c.hidden_size)?,
            attn: Projections::load(c, w)?,
            attn_q_norm: w.norm("attn_q_norm", c.head_dim)?,
            attn_k_norm: w.norm("attn_k_norm", c.head_dim)?,
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
        let q = t.tap(QNorm, n.rms_norm(&q, &self.attn_q_norm));
        let k = t.tap(KNorm, n.rms_norm(&k, &self.attn_k_norm));
        let q = t.tap(QRope, p.rotate(q));
        let k = t.tap(KRope, p.rotate(k));
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

/// Returns the scale of attention, which GGUF files do not state. As in llama.cpp, the 27B model is recognised by
/// its number of layers; its scale is computed from the hidden size. For other models it is computed from the head
/// size.
pub(super) fn attn_scale(c: &DecoderConfig, layers_of_27b: usize) -> AttentionScale {
    let scalar = if c.n_layers == layers_of_27b { c.hidden_size / c.n_heads } else { c.head_dim };
    AttentionScale::Queries(1.0 / (scalar as f32).sqrt())
}

/// Returns the defaults of transformers' `Gemma3TextConfig`, on which the released 4B to 27B models rely.
fn config_defaults() -> serde_json::Value {
    json!({
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": true,
    })
}
