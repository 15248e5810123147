//! OLMo (OLMo team, 2024): Llama's block with LayerNorm without parameters.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, Family, NormKind, RopeExtras};
use crate::model::llama;
use crate::ops::rope::RopeRounding;

/// Settings of OLMo.
pub(crate) const FAMILY: Family = Family {
    architecture: "olmo",
    gguf_names: &["olmo"],
    model_types: &["olmo"],
    norm: NormKind::LayerAlone,
    json_eps: "layer_norm_eps",
    rope: RopeExtras { rounding: RopeRounding::Results, ..RopeExtras::NONE },
    biases: BiasRules::NONE,
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `OlmoConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 50_304,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": false,
    })
}
