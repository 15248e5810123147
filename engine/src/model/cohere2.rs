//! Command R7B and Command A (Cohere, 2024): Command R's block. Layers with a sliding window use RoPE; every fourth
//! layer has full attention without RoPE.

use serde_json::{Value, json};

use crate::model::cohere;
use crate::model::decoder::{Family, SlidingDefaults};

/// Settings of Command R7B and Command A.
pub(crate) const FAMILY: Family = Family {
    architecture: "cohere2",
    gguf_names: &["cohere2"],
    model_types: &["cohere2"],
    sliding: Some(SlidingDefaults { full_every: Some(4), rotates_alone: true, ..SlidingDefaults::ALL }),
    config_defaults,
    ..cohere::FAMILY
};

/// Returns the defaults of transformers' `Cohere2Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 256_000,
        "hidden_size": 8192,
        "intermediate_size": 22_528,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "sliding_window": 4096,
        "tie_word_embeddings": true,
    })
}
