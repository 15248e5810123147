//! SmolLM3 (Hugging Face, 2025): Llama's block, without RoPE in every fourth layer.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, Family};
use crate::model::llama;

/// Settings of SmolLM3.
pub(crate) const FAMILY: Family = Family {
    architecture: "smollm3",
    gguf_names: &["smollm3"],
    model_types: &["smollm3"],
    unrotated_every: Some(4),
    config_defaults,
    biases: BiasRules::NONE,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `SmolLM3Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": true,
    })
}
