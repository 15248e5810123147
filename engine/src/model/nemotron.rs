//! Nemotron-4 and Minitron (NVIDIA, 2024): Llama's block with a LayerNorm that multiplies by 1 + weight, and
//! squared ReLU without a gate. RoPE rotates a part of each head.

use serde_json::{Value, json};

use crate::model::decoder::{BlockShape, Family, FfnShape, NormKind, RopeExtras};
use crate::model::llama;
use crate::ops::activation::Activation;
use crate::ops::norm::Gain;
use crate::tensor::RopePairing;

/// Settings of Nemotron-4 and Minitron.
pub(crate) const FAMILY: Family = Family {
    architecture: "nemotron",
    gguf_names: &["nemotron"],
    model_types: &["nemotron"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { ffn: FfnShape::Plain, ..BlockShape::LLAMA },
    norm: NormKind::Layer,
    json_eps: "norm_eps",
    gain: Gain::OnePlusWeight,
    activation: Activation::SquaredRelu,
    hidden_acts: &["relu2"],
    rope: RopeExtras { may_be_partial: true, ..RopeExtras::NONE },
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `NemotronConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 256_000,
        "hidden_size": 6144,
        "intermediate_size": 24_576,
        "num_hidden_layers": 32,
        "num_attention_heads": 48,
        "max_position_embeddings": 4096,
        "norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": false,
    })
}
