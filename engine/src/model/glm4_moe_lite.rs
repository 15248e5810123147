//! GLM 4.7 Flash (Z.ai, 2026): DeepSeek V3's block with other defaults. Its GGUF files have DeepSeek's architecture
//! name.

use serde_json::{Value, json};

use crate::model::decoder::Family;
use crate::model::deepseek_v3;

/// Settings of GLM 4.7 Flash.
pub(crate) const FAMILY: Family =
    Family { model_types: &["glm4_moe_lite"], config_defaults, ..deepseek_v3::FAMILY };

/// Returns the defaults of transformers' `Glm4MoeLiteConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 154_880,
        "hidden_size": 2048,
        "intermediate_size": 10_240,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "q_lora_rank": 768,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "max_position_embeddings": 202_752,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "n_routed_experts": 64,
        "routed_scaling_factor": 1.8,
        "first_k_dense_replace": 1,
        "norm_topk_prob": true,
        "tie_word_embeddings": false,
    })
}
