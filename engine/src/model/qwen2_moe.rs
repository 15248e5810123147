//! Mixtures of experts of Qwen 1.5 and 2 (Qwen team, 2024): Qwen 2's block with experts instead of one feed-forward
//! block, and a shared expert that every token uses.

use serde_json::{Value, json};

use crate::model::decoder::{DenseFiles, ExpertFiles, Family, SharedExpertFiles};
use crate::model::qwen2;

/// Settings of Qwen 2 with experts.
pub(crate) const FAMILY: Family = Family {
    architecture: "qwen2moe",
    gguf_names: &["qwen2moe"],
    model_types: &["qwen2_moe"],
    config_defaults,
    experts: Some(ExpertFiles {
        ffn_size: ["moe_intermediate_size", "expert_feed_forward_length"],
        normalised: Some("norm_topk_prob"),
        gguf_normalised: Some(false),
        shared: Some(SharedExpertFiles::Weighted([
            "shared_expert_intermediate_size",
            "expert_shared_feed_forward_length",
        ])),
        is_rounded: true,
        dense: DenseFiles::Listed,
        ..ExpertFiles::MIXTRAL
    }),
    ..qwen2::FAMILY
};

/// Returns the defaults of transformers' `Qwen2MoeConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": false,
    })
}
