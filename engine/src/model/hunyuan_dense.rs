//! Hunyuan dense (Tencent, 2025): Llama's block with norms of each query and key head after RoPE. A factor `alpha`
//! may stretch RoPE's base.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRule, BiasRules, BlockShape, Family, QkNorm, RopeExtras};
use crate::model::llama;
use crate::tensor::RopePairing;

/// Settings of Hunyuan dense.
pub(crate) const FAMILY: Family = Family {
    architecture: "hunyuan-dense",
    gguf_names: &["hunyuan-dense"],
    model_types: &["hunyuan_v1_dense"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { qk_norm: QkNorm::EachHeadAfterRope, ..BlockShape::LLAMA },
    rope: RopeExtras { may_have_alpha: true, ..RopeExtras::NONE },
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_bias"),
        mlp: BiasRule::Never,
    },
    layer_names: &[("attn_q_norm", "self_attn.query_layernorm"), ("attn_k_norm", "self_attn.key_layernorm")],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `HunYuanDenseV1Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 290_943,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
    })
}
