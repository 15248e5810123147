//! StarCoder2 (BigCode, 2024): Llama's block with LayerNorm, biases, GELU and no gate.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, BlockShape, Family, FfnShape, NormKind, SlidingDefaults};
use crate::model::llama;
use crate::ops::activation::Activation;
use crate::tensor::RopePairing;

/// Settings of StarCoder2.
pub(crate) const FAMILY: Family = Family {
    architecture: "starcoder2",
    gguf_names: &["starcoder2"],
    model_types: &["starcoder2"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { ffn: FfnShape::Plain, ..BlockShape::LLAMA },
    norm: NormKind::Layer,
    json_eps: "norm_epsilon",
    activation: Activation::GeluTanh,
    hidden_acts: &["gelu_pytorch_tanh"],
    biases: BiasRules::stated("use_bias"),
    sliding: Some(SlidingDefaults { is_off_in_gguf: |_| true, ..SlidingDefaults::ALL }),
    layer_names: &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Starcoder2Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 49_152,
        "hidden_size": 3072,
        "intermediate_size": 12_288,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5,
        "use_bias": true,
        "sliding_window": null,
        "tie_word_embeddings": true,
    })
}
