//! Mixtral (Jiang et al., 2024): Llama's block with experts instead of one feed-forward block. Its GGUF files and dumps
//! have Llama's name.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, ExpertFiles, Family, SlidingDefaults};
use crate::model::llama;

/// Settings of Mixtral.
pub(crate) const FAMILY: Family = Family {
    model_types: &["mixtral"],
    sliding: Some(SlidingDefaults::ALL),
    config_defaults,
    experts: Some(ExpertFiles::MIXTRAL),
    layer_names: &[
        ("ffn_gate_inp", "block_sparse_moe.gate"),
        ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
        ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
        ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
    ],
    biases: BiasRules::NONE,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `MixtralConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": null,
        "tie_word_embeddings": false,
        "num_experts_per_tok": 2,
    })
}
