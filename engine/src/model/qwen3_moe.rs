//! Mixtures of experts of Qwen 3 (Qwen team, 2025): Qwen 3's block with experts instead of one feed-forward block.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, BlockShape, DenseFiles, ExpertFiles, Family, QkNorm};
use crate::model::llama;
use crate::tensor::RopePairing;

/// Settings of Qwen 3 with experts.
pub const FAMILY: Family = Family {
    architecture: "qwen3moe",
    gguf_names: &["qwen3moe"],
    model_types: &["qwen3_moe"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { qk_norm: QkNorm::EachHead, ..BlockShape::LLAMA },
    config_defaults,
    experts: Some(ExpertFiles {
        ffn_size: ["moe_intermediate_size", "expert_feed_forward_length"],
        normalised: Some("norm_topk_prob"),
        is_rounded: true,
        dense: DenseFiles::Listed,
        ..ExpertFiles::MIXTRAL
    }),
    biases: BiasRules::NONE,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Qwen3MoeConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
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
