//! AFM (Arcee AI, 2025): Llama's block with squared ReLU and without a gate.

use serde_json::{Value, json};

use crate::model::decoder::{BlockShape, Family, FfnShape};
use crate::model::llama;
use crate::ops::activation::Activation;

/// Settings of AFM.
pub(crate) const FAMILY: Family = Family {
    architecture: "arcee",
    gguf_names: &["arcee"],
    model_types: &["arcee"],
    shape: BlockShape { ffn: FfnShape::Plain, ..BlockShape::LLAMA },
    activation: Activation::SquaredRelu,
    hidden_acts: &["relu2"],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `ArceeConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 32_000,
        "hidden_size": 2560,
        "intermediate_size": 18_432,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
    })
}
