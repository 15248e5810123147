//! Qwen 3.5 (Qwen team, 2026), as a text model: Qwen3-Next's block with a separate matrix for each projection of
//! linear attention, and a feed-forward block or experts.

use serde_json::{Value, json};

use crate::model::decoder::{DeltaLayout, DenseFiles, ExpertFiles, Family, RecurrentFiles};
use crate::model::qwen3_next;

/// Settings of Qwen 3.5 without experts.
pub(crate) const FAMILY: Family = Family {
    architecture: "qwen35",
    gguf_names: &["qwen35"],
    model_types: &["qwen3_5", "qwen3_5_text"],
    recurrent: Some(RecurrentFiles::DeltaRule(DeltaLayout::Separate)),
    experts: None,
    predicting: Some(["mtp_num_hidden_layers", "nextn_predict_layers"]),
    layer_names: &[
        ("attn_qkv", "linear_attn.in_proj_qkv"),
        ("attn_gate", "linear_attn.in_proj_z"),
        ("ssm_beta", "linear_attn.in_proj_b"),
        ("ssm_alpha", "linear_attn.in_proj_a"),
        ("ssm_conv1d", "linear_attn.conv1d"),
        ("ssm_a", "linear_attn.A_log="),
        ("ssm_dt", "linear_attn.dt="),
        ("ssm_norm", "linear_attn.norm"),
        ("ssm_out", "linear_attn.out_proj"),
    ],
    config_defaults,
    ..qwen3_next::FAMILY
};

/// Settings of Qwen 3.5 with experts.
pub(crate) const MOE_FAMILY: Family = Family {
    architecture: "qwen35moe",
    gguf_names: &["qwen35moe"],
    model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
    experts: match qwen3_next::FAMILY.experts {
        Some(experts) => Some(ExpertFiles { normalised: None, dense: DenseFiles::Never, ..experts }),
        None => None,
    },
    config_defaults: moe_config_defaults,
    ..FAMILY
};

/// Returns the defaults of transformers' `Qwen3_5TextConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 248_320,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "partial_rotary_factor": 0.25,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "full_attention_interval": 4,
        "tie_word_embeddings": false,
    })
}

/// Returns the defaults of transformers' `Qwen3_5MoeTextConfig`.
fn moe_config_defaults() -> Value {
    let mut defaults = config_defaults();
    let own = [
        ("hidden_size", 2048),
        ("num_hidden_layers", 40),
        ("num_key_value_heads", 2),
        ("moe_intermediate_size", 512),
        ("shared_expert_intermediate_size", 512),
        ("num_experts_per_tok", 8),
        ("num_experts", 256),
    ];
    own.into_iter().for_each(|(key, value)| defaults[key] = value.into());
    defaults
}
