//! gpt-oss (OpenAI, 2025): experts with biases and a clamped GLU, weighted by a softmax over the chosen experts.
//! Attention has biases, a sink in each head, and a sliding window in every other layer.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRule, BiasRules, BlockShape, ExpertFiles, Family, SlidingDefaults};
use crate::model::llama;
use crate::ops::activation::ClampedGlu;
use crate::ops::norm::Gain;
use crate::tensor::RopePairing;

/// Settings of gpt-oss.
pub(crate) const FAMILY: Family = Family {
    architecture: "gpt-oss",
    gguf_names: &["gpt-oss"],
    model_types: &["gpt_oss"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { has_sinks: true, ..BlockShape::LLAMA },
    gain: Gain::WeightFirst,
    sliding: Some(SlidingDefaults { full_every: Some(2), ..SlidingDefaults::ALL }),
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_bias"),
        mlp: BiasRule::Never,
    },
    experts: Some(ExpertFiles {
        ffn_size: ["intermediate_size", "expert_feed_forward_length"],
        is_of_chosen: true,
        clamped: Some(ClampedGlu { alpha: 1.702, limit: 7.0 }),
        is_rounded: true,
        ..ExpertFiles::MIXTRAL
    }),
    layer_names: &[
        ("attn_sinks", "self_attn.sinks="),
        ("ffn_gate_inp", "mlp.router"),
        ("ffn_gate_exps", "mlp.experts.gate_up_proj="),
        ("ffn_up_exps", "mlp.experts.gate_up_proj="),
        ("ffn_down_exps", "mlp.experts.down_proj="),
    ],
    gguf_layer_names: &[("ffn_norm", "post_attention_norm")],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `GptOssConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 201_088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "sliding_window": 128,
        "attention_bias": true,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "tie_word_embeddings": false,
    })
}
