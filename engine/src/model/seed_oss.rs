//! Seed-OSS (ByteDance, 2025): Llama's block with biases of queries, keys and values. The output projection has a
//! bias if the file states it.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRule, BiasRules, Family};
use crate::model::llama;
use crate::tensor::RopePairing;

/// Settings of Seed-OSS.
pub(crate) const FAMILY: Family = Family {
    architecture: "seed_oss",
    gguf_names: &["seed_oss"],
    model_types: &["seed_oss"],
    gguf_pairing: RopePairing::Half,
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_out_bias"),
        mlp: BiasRule::Never,
    },
    gguf_layer_names: &[("ffn_norm", "post_attention_norm")],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `SeedOssConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 155_136,
        "hidden_size": 4096,
        "intermediate_size": 27_648,
        "num_hidden_layers": 64,
        "num_attention_heads": 80,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 524_288,
        "rms_norm_eps": 1e-6,
        "attention_bias": true,
        "tie_word_embeddings": false,
    })
}
