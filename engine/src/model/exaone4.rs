//! EXAONE 4 (LG AI Research, 2025): norms after both halves instead of before them, and norms of each query and key
//! head. In models with a sliding window, layers with full attention have no RoPE.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, BlockShape, Family, HalfNorms, QkNorm, SlidingDefaults};
use crate::model::llama;
use crate::tensor::RopePairing;

/// Settings of EXAONE 4.
pub(crate) const FAMILY: Family = Family {
    architecture: "exaone4",
    gguf_names: &["exaone4"],
    model_types: &["exaone4"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { norms: HalfNorms::After, qk_norm: QkNorm::EachHead, ..BlockShape::LLAMA },
    sliding: Some(SlidingDefaults {
        full_every: Some(4),
        rotates_alone: true,
        is_off_in_gguf: |n_layers| n_layers != 64,
        ..SlidingDefaults::ALL
    }),
    layer_names: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    biases: BiasRules::NONE,
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Exaone4Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 102_400,
        "hidden_size": 4096,
        "intermediate_size": 16_384,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "tie_word_embeddings": false,
    })
}
