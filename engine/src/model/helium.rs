//! Helium (Kyutai, 2025): Llama's block, but RoPE rotates neighbouring values and norms are rounded after their
//! weights.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRule, BiasRules, Family};
use crate::model::llama;
use crate::ops::norm::Gain;
use crate::tensor::RopePairing;

/// Settings of Helium.
pub(crate) const FAMILY: Family = Family {
    architecture: "helium",
    gguf_names: &[],
    model_types: &["helium"],
    pairing: RopePairing::Interleaved,
    gain: Gain::WeightFirst,
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Never,
        mlp: BiasRule::Stated("mlp_bias"),
    },
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `HeliumConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 48_000,
        "hidden_size": 2560,
        "intermediate_size": 7040,
        "num_hidden_layers": 24,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-8,
        "rope_theta": 100_000.0,
        "tie_word_embeddings": false,
    })
}
