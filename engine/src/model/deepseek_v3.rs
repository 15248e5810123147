//! DeepSeek V3 and R1 (DeepSeek, 2024) and Kimi K2 (Moonshot, 2025): latent attention, and experts chosen by sigmoids with a
//! correction bias from groups of experts.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRule, BiasRules, ExpertFiles, Family, SHARED_EXPERTS};
use crate::model::llama;
use crate::ops::experts::ScoreFunction;
use crate::tensor::RopePairing;

/// Settings of DeepSeek V3.
pub(crate) const FAMILY: Family = Family {
    architecture: "deepseek2",
    gguf_names: &["deepseek2"],
    model_types: &["deepseek_v3", "kimi_k2"],
    pairing: RopePairing::Interleaved,
    is_latent: true,
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_bias"),
        mlp: BiasRule::Never,
    },
    // Without the key of the function, llama.cpp uses softmax, as in DeepSeek V2, except for GLM 4.7 Flash.
    experts: Some(ExpertFiles { gguf_function: Some(ScoreFunction::Softmax), ..ExpertFiles::DEEPSEEK_V3 }),
    predicting: Some(["num_nextn_predict_layers", "nextn_predict_layers"]),
    layer_names: SHARED_EXPERTS,
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `DeepseekV3Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 129_280,
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "norm_topk_prob": true,
        "tie_word_embeddings": false,
    })
}
