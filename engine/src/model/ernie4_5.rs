//! ERNIE 4.5 (Baidu, 2025), models without experts: Llama's block, but RoPE rotates neighbouring values and is not
//! rounded.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, Family, RopeExtras};
use crate::model::llama;
use crate::ops::rope::RopeRounding;
use crate::tensor::RopePairing;

/// Settings of ERNIE 4.5.
pub(crate) const FAMILY: Family = Family {
    architecture: "ernie4_5",
    gguf_names: &["ernie4_5"],
    model_types: &["ernie4_5"],
    pairing: RopePairing::Interleaved,
    rope: RopeExtras { rounding: RopeRounding::Results, ..RopeExtras::NONE },
    biases: BiasRules::stated("use_bias"),
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Ernie4_5Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 103_424,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": true,
    })
}
