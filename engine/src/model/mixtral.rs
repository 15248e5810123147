//! Mixtral (Jiang et al., 2024): Llama's block with experts instead of one feed-forward block. Its GGUF files and dumps
//! have Llama's name.

use serde_json::{Value, json};

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::KvLayer;
use crate::model::decoder::{
    BiasRules, DecoderBlock, DecoderConfig, ExpertFiles, Family, ForwardContext, LayerWeights, Mixture,
    Projections, SlidingDefaults,
};
use crate::model::llama::LlamaBlock;
use crate::ops::norm::RmsNorm;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Weights of one block.
#[derive(Clone, Debug)]
pub(crate) struct MixtralBlock {
    /// `[d]`
    pub(crate) attn_norm: RmsNorm,
    /// The matrices of attention.
    pub(crate) attn: Projections,
    /// Feed-forward half of the block.
    pub(crate) ffn: Mixture,
}

impl DecoderBlock for MixtralBlock {
    const FAMILY: Family = Family {
        model_types: &["mixtral"],
        sliding: Some(SlidingDefaults::ALL),
        config_defaults,
        experts: Some(ExpertFiles::MIXTRAL),
        layer_names: &[
            ("ffn_gate_inp", "block_sparse_moe.gate"),
            ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
            ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
            ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
        ],
        biases: BiasRules::NONE,
        ..LlamaBlock::FAMILY
    };

    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        Ok(Self {
            attn_norm: w.norm("attn_norm", c.hidden_size)?,
            attn: Projections::load(c, w)?,
            ffn: Mixture::load(c, w)?,
        })
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, kv: &mut KvLayer) -> Tensor {
        let (n, c) = (p.n, p.c);
        let norm = t.tap(AttnNorm, n.rms_norm(x, &self.attn_norm));
        let q = t.tap(Q, c.heads(self.attn.q(n, &norm)));
        let k = t.tap(K, c.heads(self.attn.k(n, &norm)));
        let v = t.tap(V, c.heads(self.attn.v(n, &norm)));
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

/// Returns the defaults of transformers' `MixtralConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": null,
        "tie_word_embeddings": false,
        "num_experts_per_tok": 2,
    })
}
