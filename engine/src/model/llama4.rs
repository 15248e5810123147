//! Llama 4 (Meta, 2025), the text model. Layers with RoPE see chunks of positions and norm queries and keys after
//! RoPE. Layers without RoPE have a temperature of queries. The inputs of experts are multiplied by a sigmoid, and
//! there is a shared expert.

use serde_json::{Value, json};

use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, DenseFiles, ExpertFiles, Family, QkNorm, RopeExtras, SharedExpertFiles,
    SlidingDefaults, TemperatureFiles,
};
use crate::model::llama;
use crate::ops::experts::ScoreFunction;
use crate::ops::rope::RopeRounding;
use crate::tensor::RopePairing;

/// Settings of Llama 4.
pub(crate) const FAMILY: Family = Family {
    architecture: "llama4",
    gguf_names: &["llama4"],
    model_types: &["llama4_text", "llama4"],
    pairing: RopePairing::Interleaved,
    gguf_pairing: RopePairing::Interleaved,
    rope: RopeExtras { rounding: RopeRounding::Results, ..RopeExtras::NONE },
    shape: BlockShape { qk_norm: QkNorm::AfterRope, ..BlockShape::LLAMA },
    unrotated_every: Some(4),
    may_list_no_layers: true,
    query_temperature: Some(TemperatureFiles::Llama4),
    sliding: Some(SlidingDefaults { full_every: Some(4), chunk: Some(8192), ..SlidingDefaults::ALL }),
    biases: BiasRules {
        qkv: BiasRule::Stated("attention_bias"),
        output: BiasRule::Stated("attention_bias"),
        mlp: BiasRule::Never,
    },
    experts: Some(ExpertFiles {
        ffn_size: ["intermediate_size", "expert_feed_forward_length"],
        gguf_normalised: Some(false),
        is_of_chosen: true,
        is_rounded: true,
        function: ScoreFunction::Sigmoid,
        shared: Some(SharedExpertFiles::Always),
        dense: DenseFiles::Interleaved("intermediate_size_mlp"),
        weighs_inputs: true,
        has_input_rows: true,
        ..ExpertFiles::MIXTRAL
    }),
    layer_names: &[
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
        ("ffn_gate_inp", "feed_forward.router"),
        ("ffn_gate_exps", "feed_forward.experts.gate_up_proj="),
        ("ffn_up_exps", "feed_forward.experts.gate_up_proj="),
        ("ffn_down_exps", "feed_forward.experts.down_proj="),
        ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
        ("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
        ("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
    ],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Llama4TextConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 202_048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16_384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "num_experts_per_tok": 1,
        "num_local_experts": 16,
        "interleave_moe_layer_step": 1,
        "use_qk_norm": true,
        "attention_chunk_size": 8192,
        "attn_temperature_tuning": true,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "tie_word_embeddings": false,
    })
}
