//! Granite 4 (IBM, 2025): Granite's multipliers. Most layers have Mamba-2; the others have attention, usually
//! without RoPE. The feed-forward block is the shared expert in models with experts.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::decoder::{
    BlockShape, ExpertFiles, ExpertPresence, Family, FfnShape, RecurrentFiles, SharedExpertFiles,
    StateSpaceFiles,
};
use crate::model::granite;
use crate::model::json::Config;

/// Settings of Granite 4.
pub(crate) const FAMILY: Family = Family {
    architecture: "granitehybrid",
    gguf_names: &["granitehybrid"],
    model_types: &["granitemoehybrid"],
    shape: BlockShape { ffn: FfnShape::FusedGate, ..BlockShape::LLAMA },
    recurrent: Some(RecurrentFiles::StateSpace(StateSpaceFiles::GraniteHybrid)),
    experts: Some(ExpertFiles {
        shared: Some(SharedExpertFiles::Unweighted([
            "shared_intermediate_size",
            "expert_shared_feed_forward_length",
        ])),
        is_rounded: true,
        presence: ExpertPresence::Counted,
        ..ExpertFiles::MIXTRAL
    }),
    ffn_size: Some(ffn_size),
    json_aliases: &[("layers_block_type", "layer_types")],
    layer_names: &[
        ("ffn_up", "shared_mlp.input_linear"),
        ("ffn_down", "shared_mlp.output_linear"),
        ("ffn_gate_inp", "block_sparse_moe.router.layer"),
        ("ffn_gate_exps", "block_sparse_moe.input_linear"),
        ("ffn_up_exps", "block_sparse_moe.input_linear"),
        ("ffn_down_exps", "block_sparse_moe.output_linear"),
        ("ffn_gate_shexp", "shared_mlp.input_linear"),
        ("ffn_up_shexp", "shared_mlp.input_linear"),
        ("ffn_down_shexp", "shared_mlp.output_linear"),
    ],
    gguf_layer_names: &[("ssm_dt", "ssm_dt.bias="), ("ssm_a", "ssm_a="), ("ssm_d", "ssm_d=")],
    config_defaults,
    ..granite::FAMILY
};

/// Returns the width of the feed-forward block, or of an expert.
fn ffn_size(file: &Config) -> Result<usize> {
    let has_experts = file.require_usize("num_local_experts")? > 0;
    file.require_usize(if has_experts { "intermediate_size" } else { "shared_intermediate_size" })
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
        "num_experts_per_tok": 2,
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
