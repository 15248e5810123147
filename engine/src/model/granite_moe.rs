//! Granite 3 with experts (IBM, 2024): Granite's multipliers around Mixtral's block.

use serde_json::{Value, json};

use crate::model::decoder::{ExpertFiles, Family};
use crate::model::granite;

/// Settings of Granite 3 with experts.
pub(crate) const FAMILY: Family = Family {
    architecture: "granitemoe",
    gguf_names: &["granitemoe"],
    model_types: &["granitemoe"],
    experts: Some(ExpertFiles { is_rounded: true, ..ExpertFiles::MIXTRAL }),
    layer_names: &[
        ("ffn_gate_inp", "block_sparse_moe.router.layer"),
        ("ffn_gate_exps", "block_sparse_moe.input_linear"),
        ("ffn_up_exps", "block_sparse_moe.input_linear"),
        ("ffn_down_exps", "block_sparse_moe.output_linear"),
    ],
    config_defaults,
    ..granite::FAMILY
};

/// Returns the defaults of transformers' `GraniteMoeConfig`.
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
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": false,
    })
}
