//! MiniMax M2 (MiniMax, 2025): experts chosen by sigmoids with a correction bias, one norm over all query heads of
//! a token, and one over all key heads. RoPE rotates a part of each head.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, BlockShape, ExpertFiles, Family, QkNorm, RopeExtras};
use crate::model::llama;
use crate::ops::experts::ScoreFunction;
use crate::tensor::RopePairing;

/// Settings of MiniMax M2.
pub(crate) const FAMILY: Family = Family {
    architecture: "minimax-m2",
    gguf_names: &["minimax-m2"],
    model_types: &["minimax_m2"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { qk_norm: QkNorm::AllHeads, ..BlockShape::LLAMA },
    rope: RopeExtras { may_be_partial: true, ..RopeExtras::NONE },
    biases: BiasRules::NONE,
    experts: Some(ExpertFiles {
        ffn_size: ["intermediate_size", "feed_forward_length"],
        function: ScoreFunction::Sigmoid,
        gguf_function: Some(ScoreFunction::Sigmoid),
        has_bias: true,
        ..ExpertFiles::MIXTRAL
    }),
    layer_names: &[
        ("ffn_gate_inp", "block_sparse_moe.gate"),
        ("exp_probs_b", "block_sparse_moe.e_score_correction_bias="),
        ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
        ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
        ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
    ],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `MiniMaxM2Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 200_064,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 196_608,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5_000_000.0,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
        "tie_word_embeddings": false,
    })
}
