//! Mixtures of experts of Qwen 3 (Qwen team, 2025): Qwen 3's block with experts instead of one feed-forward block.

use serde_json::{Value, json};

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::KvLayer;
use crate::model::decoder::{
    BiasRules, Decoder, DecoderBlock, DecoderConfig, ExpertFiles, Family, ForwardContext, LayerWeights,
    Mixture, Projections,
};
use crate::model::llama::LlamaBlock;
use crate::ops::norm::RmsNorm;
use crate::tap::Probe;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::Matrix;

/// A Qwen 3 model with experts.
pub type Qwen3Moe = Decoder<Qwen3MoeBlock>;

/// Weights of one block.
#[derive(Clone, Debug)]
pub struct Qwen3MoeBlock {
    /// `[d]`
    pub(crate) attn_norm: RmsNorm,
    /// The matrices of attention.
    pub(crate) attn: Projections,
    /// `[D]`, the same for every query head
    pub(crate) attn_q_norm: RmsNorm,
    /// `[D]`, the same for every key head
    pub(crate) attn_k_norm: RmsNorm,
    /// Feed-forward half of the block.
    pub ffn: Mixture,
}

impl DecoderBlock for Qwen3MoeBlock {
    const FAMILY: Family = Family {
        architecture: "qwen3moe",
        gguf_names: &["qwen3moe"],
        model_types: &["qwen3_moe"],
        gguf_pairing: RopePairing::Half,
        config_defaults,
        experts: Some(ExpertFiles {
            ffn_size: ["moe_intermediate_size", "expert_feed_forward_length"],
            normalised: Some("norm_topk_prob"),
            is_rounded: true,
            ..ExpertFiles::MIXTRAL
        }),
        biases: BiasRules::NONE,
        ..LlamaBlock::FAMILY
    };

    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        Ok(Self {
            attn_norm: w.norm("attn_norm", c.hidden_size)?,
            attn: Projections::load(c, w)?,
            attn_q_norm: w.norm("attn_q_norm", c.head_dim)?,
            attn_k_norm: w.norm("attn_k_norm", c.head_dim)?,
            ffn: Mixture::load(c, w)?,
        })
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, kv: &mut KvLayer) -> Tensor {
        let (n, c) = (p.n, p.c);
        let norm = t.tap(AttnNorm, n.rms_norm(x, &self.attn_norm));
        let q = t.tap(Q, c.heads(self.attn.q(n, &norm)));
        let k = t.tap(K, c.heads(self.attn.k(n, &norm)));
        let v = t.tap(V, c.heads(self.attn.v(n, &norm)));
        let q = t.tap(QNorm, n.rms_norm(&q, &self.attn_q_norm));
        let k = t.tap(KNorm, n.rms_norm(&k, &self.attn_k_norm));
        let q = t.tap(QRope, p.rotate(&q));
        let k = t.tap(KRope, p.rotate(&k));
        let context = p.attend(&q, k, v, t, kv);
        let out = t.tap(AttnOut, self.attn.output(n, &context));
        let h = t.tap(AttnResidual, n.add(x, &out));
        let ffn = self.ffn.forward(&h, p, t);
        t.tap(BlockOut, n.add(&h, &ffn))
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        [self.attn.matrices(), self.ffn.matrices()].concat()
    }
}

/// Returns the defaults of transformers' `Qwen3MoeConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
        "num_experts_per_tok": 8,
        "norm_topk_prob": false,
    })
}
