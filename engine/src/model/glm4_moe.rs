//! GLM 4.5 (Z.ai, 2025): Llama's block with DeepSeek V3's experts. RoPE rotates a part of each head. Queries and
//! keys have norms if the files state them.

use serde_json::{Value, json};

use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, ExpertFiles, Family, QkNorm, RopeExtras, SHARED_EXPERTS,
};
use crate::model::llama;
use crate::tensor::RopePairing;

/// Settings of GLM 4.5.
pub(crate) const FAMILY: Family = Family {
    architecture: "glm4moe",
    gguf_names: &["glm4moe"],
    model_types: &["glm4_moe"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { qk_norm: QkNorm::EachHeadIfStated, ..BlockShape::LLAMA },
    rope: RopeExtras { may_be_partial: true, ..RopeExtras::NONE },
    biases: BiasRules { qkv: BiasRule::Stated("attention_bias"), ..BiasRules::NONE },
    experts: Some(ExpertFiles::DEEPSEEK_V3),
    predicting: Some(["num_nextn_predict_layers", "nextn_predict_layers"]),
    layer_names: SHARED_EXPERTS,
    gguf_layer_names: &[("ffn_norm", "post_attention_norm")],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Glm4MoeConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 151_552,
        "hidden_size": 4096,
        "intermediate_size": 10_944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_routed_experts": 128,
        "first_k_dense_replace": 1,
        "norm_topk_prob": true,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": false,
    })
}
