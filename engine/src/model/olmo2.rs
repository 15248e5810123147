//! OLMo 2 (OLMo team, 2024): Llama's block with norms after both halves instead of before them, one norm over all query
//! heads of a token, and one over all key heads.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, BlockShape, Family, HalfNorms, QkNorm, RopeExtras};
use crate::model::llama;
use crate::ops::norm::Gain;
use crate::ops::rope::RopeRounding;
use crate::tensor::RopePairing;

/// Settings of OLMo 2.
pub(crate) const FAMILY: Family = Family {
    architecture: "olmo2",
    gguf_names: &["olmo2"],
    model_types: &["olmo2"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { norms: HalfNorms::After, qk_norm: QkNorm::AllHeads, ..BlockShape::LLAMA },
    gain: Gain::WeightFirst,
    rope: RopeExtras { rounding: RopeRounding::Results, ..RopeExtras::NONE },
    config_defaults,
    layer_names: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    biases: BiasRules::NONE,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Olmo2Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 50_304,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
    })
}
