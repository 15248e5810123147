//! DeepSeek V2 (DeepSeek, 2024): DeepSeek V3's block, but the router uses softmax without a correction bias, and
//! groups are chosen by their largest score. Its GGUF files have DeepSeek V3's architecture name.

use serde_json::{Value, json};

use crate::model::decoder::{ExpertFiles, Family, RopeExtras};
use crate::model::deepseek_v3;
use crate::ops::experts::ScoreFunction;
use crate::ops::rope::RopeRounding;

/// Settings of DeepSeek V2.
pub(crate) const FAMILY: Family = Family {
    model_types: &["deepseek_v2"],
    rope: RopeExtras { rounding: RopeRounding::Results, ..RopeExtras::NONE },
    experts: Some(ExpertFiles {
        function: ScoreFunction::Softmax,
        has_bias: false,
        summed: 1,
        ..ExpertFiles::DEEPSEEK_V3
    }),
    predicting: None,
    config_defaults,
    ..deepseek_v3::FAMILY
};

/// Returns the defaults of transformers' `DeepseekV2Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 102_400,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "moe_intermediate_size": 1407,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "topk_method": "greedy",
        "first_k_dense_replace": 0,
        "norm_topk_prob": false,
        "tie_word_embeddings": false,
    })
}
