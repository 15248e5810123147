//! StableLM (Stability AI, 2023): Llama's block with LayerNorm. RoPE rotates a part of each head. In some models,
//! both halves of a block read the same norm of the block's input.

use serde_json::{Value, json};

use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, Family, NormKind, ParallelHalves, ParallelOrder, RopeExtras,
};
use crate::model::llama;
use crate::tensor::RopePairing;

/// Settings of StableLM.
pub(crate) const FAMILY: Family = Family {
    architecture: "stablelm",
    gguf_names: &["stablelm"],
    model_types: &["stablelm"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape {
        parallel: Some(ParallelHalves {
            has_ffn_norm: false,
            order: ParallelOrder::AttentionFirst,
            gguf_order: ParallelOrder::AttentionFirst,
            is_always: false,
        }),
        ..BlockShape::LLAMA
    },
    norm: NormKind::Layer,
    json_eps: "layer_norm_eps",
    rope: RopeExtras { may_be_partial: true, ..RopeExtras::NONE },
    biases: BiasRules { qkv: BiasRule::Stated("use_qkv_bias"), ..BiasRules::NONE },
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `StableLmConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 50_304,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
        "tie_word_embeddings": false,
    })
}
