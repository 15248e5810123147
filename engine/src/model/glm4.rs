//! GLM 4 (Z.ai, 2025), models without experts: norms before and after both halves, gate and up projections in one
//! matrix, and biases of queries, keys and values. RoPE rotates a part of each head, in pairs of neighbouring
//! values.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRule, BiasRules, BlockShape, Family, FfnShape, HalfNorms, RopeExtras};
use crate::model::llama;
use crate::tensor::RopePairing;

/// Settings of GLM 4.
pub(crate) const FAMILY: Family = Family {
    architecture: "glm4",
    gguf_names: &["glm4"],
    model_types: &["glm4"],
    pairing: RopePairing::Interleaved,
    shape: BlockShape { norms: HalfNorms::Around, ffn: FfnShape::FusedGate, ..BlockShape::LLAMA },
    rope: RopeExtras { may_be_partial: true, ..RopeExtras::NONE },
    biases: BiasRules { qkv: BiasRule::Stated("attention_bias"), ..BiasRules::NONE },
    layer_names: &[
        ("post_attention_norm", "post_self_attn_layernorm"),
        ("post_ffw_norm", "post_mlp_layernorm"),
        ("ffn_up", "mlp.gate_up_proj"),
    ],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Glm4Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 151_552,
        "hidden_size": 4096,
        "intermediate_size": 13_696,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1.5625e-7,
        "partial_rotary_factor": 0.5,
        "attention_bias": true,
        "tie_word_embeddings": false,
    })
}
