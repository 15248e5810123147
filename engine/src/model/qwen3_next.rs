//! Qwen3-Next (Qwen team, 2025): linear attention with a gated delta rule in most layers, attention with an output
//! gate in the others, and experts with a shared expert.

use serde_json::{Value, json};

use crate::model::decoder::{
    BiasRules, BlockShape, DeltaLayout, DenseFiles, ExpertFiles, Family, QkNorm, RecurrentFiles, RopeExtras,
    SharedExpertFiles,
};
use crate::model::llama;
use crate::ops::norm::Gain;
use crate::tensor::RopePairing;

/// Settings of Qwen3-Next.
pub(crate) const FAMILY: Family = Family {
    architecture: "qwen3next",
    gguf_names: &["qwen3next"],
    model_types: &["qwen3_next"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { qk_norm: QkNorm::EachHead, has_output_gate: true, ..BlockShape::LLAMA },
    gain: Gain::OnePlusWeight,
    rope: RopeExtras { may_be_partial: true, ..RopeExtras::NONE },
    recurrent: Some(RecurrentFiles::DeltaRule(DeltaLayout::Grouped)),
    experts: Some(ExpertFiles {
        ffn_size: ["moe_intermediate_size", "expert_feed_forward_length"],
        normalised: Some("norm_topk_prob"),
        shared: Some(SharedExpertFiles::Weighted([
            "shared_expert_intermediate_size",
            "expert_shared_feed_forward_length",
        ])),
        has_plain_sigmoid: true,
        is_rounded: true,
        dense: DenseFiles::Listed,
        ..ExpertFiles::MIXTRAL
    }),
    predicting: Some(["num_nextn_predict_layers", "nextn_predict_layers"]),
    biases: BiasRules::NONE,
    layer_names: &[
        ("attn_qkvz", "linear_attn.in_proj_qkvz"),
        ("ssm_ba", "linear_attn.in_proj_ba"),
        ("ssm_conv1d", "linear_attn.conv1d"),
        ("ssm_a", "linear_attn.A_log="),
        ("ssm_dt", "linear_attn.dt="),
        ("ssm_norm", "linear_attn.norm"),
        ("ssm_out", "linear_attn.out_proj"),
    ],
    gguf_layer_names: &[("ffn_norm", "post_attention_norm"), ("ssm_a", "ssm_a=")],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Qwen3NextConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
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
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "norm_topk_prob": true,
        "tie_word_embeddings": false,
    })
}
