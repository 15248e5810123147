//! Ministral 3 (Mistral AI, 2025): Mistral's block with YaRN and a temperature of queries that grows with each original
//! context of YaRN. GGUF files of Mistral Small 3.1 use Ministral 3's architecture name (`mistral3`).

use serde_json::{Value, json};

use crate::model::decoder::{Family, SlidingDefaults, TemperatureFiles};
use crate::model::mistral;

/// Settings of Ministral 3.
pub(crate) const FAMILY: Family = Family {
    gguf_names: &["mistral3"],
    model_types: &["mistral3", "ministral3"],
    query_temperature: Some(TemperatureFiles::Ministral3),
    // llama.cpp computes these models without the window.
    sliding: Some(SlidingDefaults { is_off_in_gguf: |_| true, ..SlidingDefaults::ALL }),
    config_defaults,
    ..mistral::FAMILY
};

/// Returns the defaults of transformers' `Ministral3Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 131_072,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 34,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "type": "yarn",
            "rope_theta": 1_000_000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16_384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale_all_dim": 1.0,
            "mscale": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
        "tie_word_embeddings": false,
    })
}
