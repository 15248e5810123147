//! Phi-3 and Phi-4 mini (Microsoft, 2024): Llama's block with fused projections (q, k and v; gate and up). A part of
//! each head may rotate, with frequencies scaled by LongRoPE.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::{
    BiasRules, BlockShape, DecoderBlock, DecoderConfig, Family, FeedForward, FfnShape, ForwardContext,
    LayerWeights, Projections, RopeExtras, SlidingDefaults,
};
use crate::model::llama::{self, LlamaBlock};
use crate::ops::attention::AttentionScale;
use crate::tap::Probe;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::Matrix;

/// Llama's block, with its matrices split from the file's fused matrices.
#[derive(Clone, Debug)]
pub(crate) struct Phi3Block(LlamaBlock);

/// Settings of Phi-3 and Phi-4 mini.
pub(crate) const FAMILY: Family = Family {
    architecture: "phi3",
    gguf_names: &["phi3"],
    model_types: &["phi3"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { ffn: FfnShape::FusedGate, ..BlockShape::LLAMA },
    attn_scale: |c| AttentionScale::Queries(1.0 / (c.head_dim as f32).sqrt()),
    sliding: Some(SlidingDefaults { is_off_in_gguf: |_| true, ..SlidingDefaults::ALL }),
    rope: RopeExtras { may_be_partial: true, may_be_long: true, ..RopeExtras::NONE },
    config_defaults,
    layer_names: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")],
    biases: BiasRules::NONE,
    ..llama::FAMILY
};

impl DecoderBlock for Phi3Block {
    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let (q_width, kv_width) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        let attn_norm = w.norm("attn_norm", c.hidden_size)?;
        let [q, k, v] = w.fused_heads(false, [q_width, kv_width, kv_width], c.hidden_size)?;
        let output = w.projection("attn_output", false, c.hidden_size, q_width)?;
        Ok(Self(LlamaBlock {
            attn_norm,
            attn: Projections { q, k, v, output, gate: None },
            ffn: FeedForward::load(c, w)?,
        }))
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        self.0.forward(x, p, t, state)
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        self.0.matrices()
    }
}

/// Returns the defaults of transformers' `Phi3Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 32_064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "sliding_window": null,
        "tie_word_embeddings": false,
    })
}
