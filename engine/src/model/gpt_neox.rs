//! GPT-NeoX and Pythia (EleutherAI, 2022): LayerNorm, biases, and GELU without a gate. RoPE rotates a part of each
//! head. Both halves of a block read the block's input, each through its own norm, unless a file states otherwise.

use serde_json::{Value, json};

use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, Family, FfnShape, NormKind, OuterNames, ParallelHalves, ParallelOrder,
    RopeExtras,
};
use crate::model::llama;
use crate::ops::activation::Activation;
use crate::tensor::RopePairing;

/// Settings of GPT-NeoX and Pythia.
pub(crate) const FAMILY: Family = Family {
    architecture: "gptneox",
    gguf_names: &["gptneox"],
    model_types: &["gpt_neox"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape {
        ffn: FfnShape::Plain,
        parallel: Some(ParallelHalves {
            has_ffn_norm: true,
            order: ParallelOrder::HalvesTogether,
            gguf_order: ParallelOrder::FeedForwardFirst,
            is_always: false,
        }),
        ..BlockShape::LLAMA
    },
    norm: NormKind::Layer,
    json_eps: "layer_norm_eps",
    activation: Activation::GeluErf,
    gguf_activations: &[("gptneox", Activation::GeluTanh)],
    hidden_acts: &["gelu", "gelu_new", "gelu_pytorch_tanh"],
    rope: RopeExtras {
        may_be_partial: true,
        old_keys: ["rotary_emb_base", "rotary_pct"],
        ..RopeExtras::NONE
    },
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_bias"),
        mlp: BiasRule::Always,
    },
    layer_names: &[
        ("attn_qkv", "attention.query_key_value"),
        ("attn_output", "attention.dense"),
        ("ffn_up", "mlp.dense_h_to_4h"),
        ("ffn_down", "mlp.dense_4h_to_h"),
    ],
    outer_names: OuterNames {
        prefix: "gpt_neox.",
        embedding: "embed_in",
        norm: "final_layer_norm",
        head: "embed_out",
        ..OuterNames::LLAMA
    },
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `GPTNeoXConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 50_432,
        "hidden_size": 6144,
        "intermediate_size": 24_576,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "rotary_pct": 0.25,
        "attention_bias": true,
        "use_parallel_residual": true,
        "tie_word_embeddings": false,
    })
}
