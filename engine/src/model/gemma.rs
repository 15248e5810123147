//! Gemma (Gemma team, 2024): Llama's block with GELU, embeddings times √d, and norms that multiply by 1 + weight.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRule, BiasRules, Family};
use crate::model::gemma3;
use crate::ops::attention::AttentionScale;

/// Settings of Gemma.
pub(crate) const FAMILY: Family = Family {
    architecture: "gemma",
    gguf_names: &["gemma"],
    model_types: &["gemma"],
    attn_scale: |c| AttentionScale::Queries(1.0 / (c.head_dim as f32).sqrt()),
    sliding: None,
    layer_names: &[],
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_bias"),
        mlp: BiasRule::Never,
    },
    config_defaults,
    ..gemma3::FAMILY
};

/// Returns the defaults of transformers' `GemmaConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 256_000,
        "hidden_size": 3072,
        "intermediate_size": 24_576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true,
    })
}
