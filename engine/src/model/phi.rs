//! Phi-1, Phi-1.5 and Phi-2 (Microsoft, 2023): both halves of a block read the same LayerNorm of the block's input.
//! All matrices have biases, including the vocabulary projection. GELU without a gate; RoPE rotates a part of each
//! head.

use serde_json::{Value, json};

use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, Family, FfnShape, NormKind, OuterNames, ParallelHalves, RopeExtras,
};
use crate::model::llama;
use crate::ops::activation::Activation;
use crate::ops::attention::AttentionScale;
use crate::tensor::RopePairing;

/// Settings of Phi-1, Phi-1.5 and Phi-2.
pub(crate) const FAMILY: Family = Family {
    architecture: "phi2",
    gguf_names: &["phi2"],
    model_types: &["phi"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { ffn: FfnShape::Plain, parallel: Some(ParallelHalves::ONE_NORM), ..BlockShape::LLAMA },
    norm: NormKind::Layer,
    json_eps: "layer_norm_eps",
    activation: Activation::GeluNew,
    hidden_acts: &["gelu_new", "gelu", "gelu_pytorch_tanh"],
    attn_scale: |c| AttentionScale::Queries(1.0 / (c.head_dim as f32).sqrt()),
    rope: RopeExtras { may_be_partial: true, ..RopeExtras::NONE },
    biases: BiasRules { qkv: BiasRule::Always, output: BiasRule::Always, mlp: BiasRule::Always },
    has_head_bias: true,
    layer_names: &[("attn_output", "self_attn.dense"), ("ffn_up", "mlp.fc1"), ("ffn_down", "mlp.fc2")],
    outer_names: OuterNames { norm: "final_layernorm", ..OuterNames::LLAMA },
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `PhiConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 51_200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": false,
    })
}
