//! Command R (Cohere, 2024): both halves of a block read the same norm of the block's input, a LayerNorm without a
//! bias. RoPE rotates neighbouring values, and logits are scaled.

use serde_json::{Value, json};

use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, Family, NormKind, NumberKey, ParallelHalves, ParallelOrder, RopeExtras,
};
use crate::model::llama;
use crate::ops::rope::RopeRounding;
use crate::ops::scaling::Multiplier;
use crate::tensor::RopePairing;

/// Settings of Command R.
pub(crate) const FAMILY: Family = Family {
    architecture: "command-r",
    gguf_names: &["command-r"],
    model_types: &["cohere"],
    pairing: RopePairing::Interleaved,
    shape: BlockShape {
        parallel: Some(ParallelHalves {
            has_ffn_norm: false,
            order: ParallelOrder::AttentionFirst,
            gguf_order: ParallelOrder::FeedForwardFirst,
            is_always: true,
        }),
        ..BlockShape::LLAMA
    },
    norm: NormKind::LayerWithoutBias,
    json_eps: "layer_norm_eps",
    rope: RopeExtras { rounding: RopeRounding::Tables, ..RopeExtras::NONE },
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_bias"),
        mlp: BiasRule::Never,
    },
    stated: &[NumberKey {
        json: "logit_scale",
        gguf: "logit_scale",
        default: [None; 2],
        set: |config, factor| config.logits_scale = Some(Multiplier::Number(factor)),
    }],
    gguf_head_is_tied: true,
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `CohereConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 256_000,
        "hidden_size": 8192,
        "intermediate_size": 22_528,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": true,
    })
}
