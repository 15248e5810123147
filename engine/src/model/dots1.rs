//! dots.llm1 (rednote, 2025): DeepSeek V3's experts in Llama's block, and norms of queries and keys.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRule, BiasRules, BlockShape, ExpertFiles, Family, QkNorm, SHARED_EXPERTS};
use crate::model::llama;
use crate::tensor::RopePairing;

/// Settings of dots.llm1.
pub(crate) const FAMILY: Family = Family {
    architecture: "dots1",
    gguf_names: &["dots1"],
    model_types: &["dots1"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { qk_norm: QkNorm::EachHead, ..BlockShape::LLAMA },
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_bias"),
        mlp: BiasRule::Never,
    },
    experts: Some(ExpertFiles::DEEPSEEK_V3),
    has_window_switch: false,
    layer_names: SHARED_EXPERTS,
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Dots1Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 152_064,
        "hidden_size": 4608,
        "intermediate_size": 10_944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "max_window_layers": 62,
        "norm_topk_prob": false,
        "tie_word_embeddings": false,
    })
}
