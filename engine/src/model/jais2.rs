//! Jais 2 (Inception, 2025): Llama's block with LayerNorm, biases in all matrices, squared ReLU and no gate.

use serde_json::{Value, json};

use crate::model::decoder::{BlockShape, Family, FfnShape, NormKind};
use crate::model::llama;
use crate::ops::activation::Activation;
use crate::tensor::RopePairing;

/// Settings of Jais 2.
pub(crate) const FAMILY: Family = Family {
    architecture: "jais2",
    gguf_names: &["jais2"],
    model_types: &["jais2"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { ffn: FfnShape::Plain, ..BlockShape::LLAMA },
    norm: NormKind::Layer,
    json_eps: "layer_norm_eps",
    activation: Activation::SquaredRelu,
    hidden_acts: &["relu2"],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Jais2Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 150_272,
        "hidden_size": 3328,
        "intermediate_size": 26_624,
        "num_hidden_layers": 32,
        "num_attention_heads": 26,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "attention_bias": true,
        "mlp_bias": true,
        "tie_word_embeddings": false,
    })
}
