//! Granite 3 (IBM, 2024): Llama's block with multipliers for embeddings, scores, the output of both halves of a block,
//! and logits.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, Family, NumberKey};
use crate::model::llama;
use crate::ops::attention::AttentionScale;
use crate::ops::scaling::Multiplier;

/// Settings of Granite 3.
pub(crate) const FAMILY: Family = Family {
    architecture: "granite",
    gguf_names: &["granite"],
    model_types: &["granite"],
    stated: &[
        NumberKey {
            json: "embedding_multiplier",
            gguf: "embedding_scale",
            default: [None; 2],
            set: |config, factor| config.embed_scale = Some(Multiplier::Number(factor)),
        },
        NumberKey {
            json: "attention_multiplier",
            gguf: "attention.scale",
            default: [None; 2],
            set: |config, factor| config.attn_scale = AttentionScale::Products(factor),
        },
        NumberKey {
            json: "residual_multiplier",
            gguf: "residual_scale",
            default: [None; 2],
            set: |config, factor| config.residual_scale = Some(factor),
        },
        NumberKey {
            json: "logits_scaling",
            gguf: "logit_scale",
            default: [None; 2],
            set: |config, divisor| config.logits_scale = Some(Multiplier::Divisor(divisor)),
        },
    ],
    config_defaults,
    biases: BiasRules::NONE,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `GraniteConfig`. The default factor of scores is 1.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "attention_multiplier": 1.0,
        "tie_word_embeddings": false,
    })
}
