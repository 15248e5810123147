//! LFM2 (Liquid AI, 2025): most layers have a gated short convolution in place of attention; the others have
//! attention with norms of queries and keys. In some models, all layers after the first ones have experts.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::decoder::{
    BiasRules, BlockShape, DenseFiles, ExpertFiles, Family, OuterNames, QkNorm, RecurrentFiles,
};
use crate::model::json::Config;
use crate::model::llama;
use crate::ops::experts::{RouterPrecision, ScoreFunction};
use crate::tensor::RopePairing;

/// Settings of LFM2.
pub(crate) const FAMILY: Family = Family {
    architecture: "lfm2",
    gguf_names: &["lfm2"],
    model_types: &["lfm2"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { qk_norm: QkNorm::EachHead, ..BlockShape::LLAMA },
    json_eps: "norm_eps",
    biases: BiasRules::NONE,
    recurrent: Some(RecurrentFiles::Lfm2),
    ffn_size: Some(ffn_size),
    json_aliases: &[("block_ff_dim", "intermediate_size"), ("tie_embedding", "tie_word_embeddings")],
    layer_names: &[
        ("attn_norm", "operator_norm"),
        ("attn_q_norm", "self_attn.q_layernorm"),
        ("attn_k_norm", "self_attn.k_layernorm"),
        ("attn_output", "self_attn.out_proj"),
        ("ffn_norm", "ffn_norm"),
        ("ffn_gate", "feed_forward.w1"),
        ("ffn_up", "feed_forward.w3"),
        ("ffn_down", "feed_forward.w2"),
        ("ffn_gate_inp", "feed_forward.gate"),
        ("exp_probs_b", "feed_forward.expert_bias="),
        ("ffn_gate_exps", "feed_forward.experts.{}.w1"),
        ("ffn_up_exps", "feed_forward.experts.{}.w3"),
        ("ffn_down_exps", "feed_forward.experts.{}.w2"),
        ("ffn_gate_up_exps", "feed_forward.experts.gate_up_proj="),
        ("ffn_down_all_exps", "feed_forward.experts.down_proj="),
    ],
    gguf_output_norm: "token_embd_norm",
    outer_names: OuterNames { norm: "embedding_norm", ..OuterNames::LLAMA },
    config_defaults,
    ..llama::FAMILY
};

/// Settings of LFM2 with experts.
pub const MOE_FAMILY: Family = Family {
    architecture: "lfm2moe",
    gguf_names: &["lfm2moe"],
    model_types: &["lfm2_moe"],
    ffn_size: None,
    json_aliases: &[("tie_embedding", "tie_word_embeddings")],
    experts: Some(ExpertFiles {
        gguf_normalised: Some(true),
        shared: None,
        is_rounded: true,
        rounds_scores: true,
        added: 1e-6,
        gguf_function: Some(ScoreFunction::Sigmoid),
        precision: RouterPrecision::Activations,
        dense: DenseFiles::First("num_dense_layers"),
        ..ExpertFiles::DEEPSEEK_V3
    }),
    config_defaults: moe_defaults,
    ..FAMILY
};

/// Returns the width of the feed-forward block: two thirds of the stated width, times a factor and rounded up to a
/// multiple, unless a file disables this.
fn ffn_size(file: &Config) -> Result<usize> {
    let stated = file.require_usize("intermediate_size")?;
    if !file.optional_bool("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(stated);
    }
    let reduced = stated.saturating_mul(2) / 3;
    const FACTOR: &str = "block_ffn_dim_multiplier";
    if file.is_null(FACTOR) {
        return Ok(reduced);
    }
    let factor = file.require_f32(FACTOR)?;
    let multiple = file.require_usize("block_multiple_of")?;
    let is_sound = factor.is_finite() && factor > 0.0;
    if !is_sound || multiple == 0 {
        return Err(file.bad_key(
            "block_multiple_of",
            multiple,
            "1 or more, and a positive block_ffn_dim_multiplier",
        ));
    }
    let scaled = (f64::from(factor) * reduced as f64) as usize;
    Ok(scaled.div_ceil(multiple).saturating_mul(multiple))
}

/// Returns the defaults of transformers' `Lfm2Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 65_536,
        "hidden_size": 2560,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128_000,
        "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "conv_bias": false,
        "conv_L_cache": 3,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": true,
        "tie_word_embeddings": true,
    })
}

/// Returns the defaults of transformers' `Lfm2MoeConfig`.
fn moe_defaults() -> Value {
    json!({
        "vocab_size": 65_536,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128_000,
        "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "conv_bias": false,
        "conv_L_cache": 3,
        "num_dense_layers": 2,
        "num_experts_per_tok": 4,
        "num_experts": 32,
        "use_expert_bias": true,
        "norm_topk_prob": true,
        "tie_word_embeddings": true,
    })
}
