//! Granite 4 (IBM, 2025) without experts: Granite's multipliers around Mamba-2 in most layers and attention, usually without
//! RoPE, in the others.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::decoder::{BlockShape, Family, FfnShape, RecurrentFiles};
use crate::model::granite;
use crate::model::json::Config;

/// Settings of Granite 4.
pub(crate) const FAMILY: Family = Family {
    architecture: "granitehybrid",
    gguf_names: &["granitehybrid"],
    model_types: &["granitemoehybrid"],
    shape: BlockShape { ffn: FfnShape::FusedGate, ..BlockShape::LLAMA },
    recurrent: Some(RecurrentFiles::GraniteHybrid),
    ffn_size: Some(ffn_size),
    json_aliases: &[("layers_block_type", "layer_types")],
    layer_names: &[("ffn_up", "shared_mlp.input_linear"), ("ffn_down", "shared_mlp.output_linear")],
    gguf_layer_names: &[("ssm_dt", "ssm_dt.bias="), ("ssm_a", "ssm_a="), ("ssm_d", "ssm_d=")],
    config_defaults,
    ..granite::FAMILY
};

/// Returns the width of the feed-forward block, which is the shared expert of models with experts.
fn ffn_size(file: &Config) -> Result<usize> {
    file.only("num_local_experts", &[0.into()], "0 (Granite 4 with experts is not supported)")?;
    file.require_usize("shared_intermediate_size")
}

/// Returns the defaults of transformers' `GraniteMoeHybridConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "attention_multiplier": 1.0,
        "num_local_experts": 8,
        "shared_intermediate_size": 1024,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_head": "auto",
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": true,
        "mamba_proj_bias": false,
        "tie_word_embeddings": false,
    })
}
