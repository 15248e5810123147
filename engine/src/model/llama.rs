//! Llama (Touvron et al., 2023): RMSNorm, RoPE, grouped queries, and SwiGLU. Matrices may have biases.

use serde_json::json;

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, Decoder, DecoderBlock, DecoderConfig, Family, FeedForward,
    ForwardContext, LayerWeights, NormKind, OuterNames, Positions, Projections, RopeExtras,
    inverse_root_of_head_dim,
};
use crate::ops::activation::Activation;
use crate::ops::norm::{Gain, RmsNorm};
use crate::tap::Probe;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::Matrix;

/// A Llama model.
pub type Llama = Decoder<LlamaBlock>;

/// Weights of one block.
#[derive(Clone, Debug)]
pub struct LlamaBlock {
    /// `[d]`
    pub attn_norm: RmsNorm,
    /// The matrices of attention.
    pub attn: Projections,
    /// Feed-forward half of the block.
    pub ffn: FeedForward,
}

/// Settings of Llama.
pub const FAMILY: Family = Family {
    architecture: "llama",
    gguf_names: &["llama"],
    model_types: &["llama"],
    pairing: RopePairing::Half,
    gguf_pairing: RopePairing::Interleaved,
    shape: BlockShape::LLAMA,
    norm: NormKind::Rms,
    json_eps: "rms_norm_eps",
    activation: Activation::Silu,
    hidden_acts: &["silu"],
    gguf_activations: &[],
    gguf_head_is_tied: false,
    may_be_quantised: false,
    gain: Gain::Weight,
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_bias"),
        mlp: BiasRule::Stated("mlp_bias"),
    },
    embed_scale: |_| None,
    attn_scale: inverse_root_of_head_dim,
    stated: &[],
    sliding: None,
    has_window_switch: true,
    unrotated_every: None,
    may_list_no_layers: false,
    query_temperature: None,
    has_layer_variants: false,
    has_streams: false,
    rope: RopeExtras::NONE,
    config_defaults: || json!({"rms_norm_eps": 1e-6}),
    experts: None,
    recurrent: None,
    ffn_size: None,
    json_aliases: &[],
    predicting: None,
    is_latent: false,
    layer_names: &[],
    gguf_layer_names: &[],
    gguf_output_norm: "output_norm",
    outer_names: OuterNames::LLAMA,
    positions: Positions::Rotary,
    has_head_bias: false,
    kv_heads: None,
    refuse_json: |_| Ok(()),
};

impl DecoderBlock for LlamaBlock {
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
        let q = t.tap(QRope, p.rotate(q));
        let k = t.tap(KRope, p.rotate(k));
        let context = p.attend(&q, k, v, t, state);
        let out = t.tap(AttnOut, self.attn.output(n, &context));
        let h = t.tap(AttnResidual, p.add(x, &out));
        let ffn = self.ffn.forward(&h, p, t);
        t.tap(BlockOut, p.add(&h, &ffn))
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        [self.attn.matrices(), self.ffn.matrices()].concat()
    }
}
