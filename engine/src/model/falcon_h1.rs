//! Falcon-H1 (TII, 2025): attention and Mamba-2 in parallel in each block, with constant factors of most values.

use serde_json::{Value, json};

use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, Family, NumberKey, OuterNames, RecurrentFiles, StateSpaceFiles,
};
use crate::model::llama;
use crate::ops::scaling::Multiplier;
use crate::tensor::RopePairing;

/// Settings of Falcon-H1. GGUF files contain the factors in the weights.
pub(crate) const FAMILY: Family = Family {
    architecture: "falcon-h1",
    gguf_names: &["falcon-h1"],
    model_types: &["falcon_h1"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { has_parallel_mixer: true, ..BlockShape::LLAMA },
    biases: BiasRules { mlp: BiasRule::Stated("mlp_bias"), ..BiasRules::stated("attention_bias") },
    recurrent: Some(RecurrentFiles::StateSpace(StateSpaceFiles::FalconH1)),
    json_aliases: &[("layers_block_type", "layer_types")],
    stated: &[
        NumberKey {
            json: "embedding_multiplier",
            gguf: "embedding_multiplier",
            default: [None; 2],
            set: |config, factor| config.embed_scale = Some(Multiplier::Number(factor)),
        },
        NumberKey {
            json: "lm_head_multiplier",
            gguf: "lm_head_multiplier",
            default: [None; 2],
            set: |config, factor| config.logits_scale = Some(Multiplier::Number(factor)),
        },
    ],
    layer_names: &[
        ("ffn_norm", "pre_ff_layernorm"),
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
    ],
    gguf_layer_names: &[
        ("ssm_dt", "ssm_dt.bias="),
        ("ssm_a", "ssm_a="),
        ("ssm_d", "ssm_d="),
        ("ffn_norm", "ffn_norm="),
    ],
    outer_names: OuterNames { norm: "final_layernorm", ..OuterNames::LLAMA },
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `FalconH1Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 128_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "mamba_d_ssm": 1024,
        "mamba_n_heads": 128,
        "mamba_d_head": "auto",
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": true,
        "mamba_proj_bias": false,
        "mamba_norm_before_gate": true,
        "mamba_rms_norm": false,
        "projectors_bias": false,
        "tie_word_embeddings": false,
    })
}
