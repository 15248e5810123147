//! Nemotron-H (NVIDIA, 2025): each layer is one of Mamba-2, attention without RoPE, a feed-forward block with
//! squared ReLU and without a gate, or a mixture of such feed-forward blocks.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, DenseFiles, ExpertFiles, ExpertPresence, Family, FfnShape, OuterNames,
    Positions, RecurrentFiles, SharedExpertFiles, StateSpaceFiles,
};
use crate::model::json::Config;
use crate::model::llama;
use crate::ops::activation::Activation;
use crate::ops::norm::Gain;
use crate::tensor::RopePairing;

/// Settings of Nemotron-H.
pub(crate) const FAMILY: Family = Family {
    architecture: "nemotron_h",
    gguf_names: &["nemotron_h", "nemotron_h_moe"],
    model_types: &["nemotron_h"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { ffn: FfnShape::Plain, has_single_halves: true, ..BlockShape::LLAMA },
    positions: Positions::Absent,
    gain: Gain::WeightFirst,
    json_eps: "layer_norm_epsilon",
    activation: Activation::SquaredRelu,
    hidden_acts: &["relu2"],
    biases: BiasRules { mlp: BiasRule::Stated("mlp_bias"), ..BiasRules::NONE },
    recurrent: Some(RecurrentFiles::StateSpace(StateSpaceFiles::NemotronH)),
    experts: Some(ExpertFiles {
        shared: Some(SharedExpertFiles::Unweighted([
            "moe_shared_expert_intermediate_size",
            "expert_shared_feed_forward_length",
        ])),
        gguf_function: None,
        mixes_whole: true,
        dense: DenseFiles::Kinds,
        presence: ExpertPresence::Listed,
        latent: Some("moe_latent_size"),
        ..ExpertFiles::DEEPSEEK_V3
    }),
    refuse_json,
    predicting: Some(["num_nextn_predict_layers", "nextn_predict_layers"]),
    json_aliases: &[
        ("layers_block_type", "layer_types"),
        ("mlp_hidden_act", "hidden_act"),
        ("mamba_n_groups", "n_groups"),
        ("mamba_d_conv", "conv_kernel"),
        ("mamba_conv_bias", "use_conv_bias"),
        ("mamba_dt_min", "time_step_min"),
        ("mamba_dt_limit", "time_step_limit"),
    ],
    layer_names: &[
        ("attn_norm", "norm"),
        ("ssm_in", "mixer.in_proj"),
        ("ssm_conv1d", "mixer.conv1d"),
        ("ssm_dt", "mixer.dt_bias="),
        ("ssm_a", "mixer.A_log="),
        ("ssm_d", "mixer.D="),
        ("ssm_norm", "mixer.norm"),
        ("ssm_out", "mixer.out_proj"),
        ("attn_q", "mixer.q_proj"),
        ("attn_k", "mixer.k_proj"),
        ("attn_v", "mixer.v_proj"),
        ("attn_output", "mixer.o_proj"),
        ("ffn_norm", "norm"),
        ("ffn_up", "mixer.up_proj"),
        ("ffn_down", "mixer.down_proj"),
        ("ffn_gate_inp", "mixer.gate"),
        ("exp_probs_b", "mixer.gate.e_score_correction_bias="),
        ("ffn_up_exps", "mixer.experts.{}.up_proj"),
        ("ffn_down_exps", "mixer.experts.{}.down_proj"),
        ("ffn_up_all_exps", "mixer.experts.up_proj="),
        ("ffn_down_all_exps", "mixer.experts.down_proj="),
        ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
        ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
        ("ffn_latent_down", "mixer.fc1_latent_proj"),
        ("ffn_latent_up", "mixer.fc2_latent_proj"),
    ],
    gguf_layer_names: &[
        ("ssm_dt", "ssm_dt.bias="),
        ("ssm_a", "ssm_a="),
        ("ssm_d", "ssm_d="),
        ("ffn_norm", "attn_norm"),
    ],
    outer_names: OuterNames {
        prefix: "backbone.",
        embedding: "embeddings",
        norm: "norm_f",
        ..OuterNames::LLAMA
    },
    config_defaults,
    ..llama::FAMILY
};

fn refuse_json(file: &Config) -> Result<()> {
    if FAMILY.experts.map_or(Ok(false), |experts| experts.are_in_json(file))? {
        file.only("mlp_bias", &[false.into()], "false (biases of experts are not supported)")?;
    }
    Ok(())
}

/// Returns the defaults of transformers' `NemotronHConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 131_072,
        "hidden_size": 4096,
        "intermediate_size": 21_504,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "layer_norm_epsilon": 1e-5,
        "hidden_act": "relu2",
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "conv_kernel": 4,
        "use_conv_bias": true,
        "use_bias": false,
        "time_step_min": 0.001,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "norm_topk_prob": true,
        "tie_word_embeddings": false,
    })
}
