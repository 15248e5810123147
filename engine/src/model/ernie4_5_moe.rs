//! ERNIE 4.5 with experts (Baidu, 2025): softmax with a correction bias, shared experts without a weight, and layers without
//! experts.

use serde_json::{Value, json};

use crate::model::decoder::{
    BiasRules, DenseFiles, ExpertFiles, Family, RopeExtras, SHARED_EXPERTS, SharedExpertFiles,
};
use crate::model::llama;
use crate::ops::experts::RouterPrecision;
use crate::ops::rope::RopeRounding;
use crate::tensor::RopePairing;

/// Settings of ERNIE 4.5.
pub(crate) const FAMILY: Family = Family {
    architecture: "ernie4_5-moe",
    gguf_names: &["ernie4_5-moe"],
    model_types: &["ernie4_5_moe"],
    pairing: RopePairing::Interleaved,
    rope: RopeExtras { rounding: RopeRounding::Results, ..RopeExtras::NONE },
    biases: BiasRules::NONE,
    experts: Some(ExpertFiles {
        ffn_size: ["moe_intermediate_size", "expert_feed_forward_length"],
        shared: Some(SharedExpertFiles::Count("moe_num_shared_experts")),
        is_rounded: true,
        precision: RouterPrecision::Whole,
        has_bias: true,
        dense: DenseFiles::Ernie,
        ..ExpertFiles::MIXTRAL
    }),
    layer_names: &[
        ("exp_probs_b", "mlp.moe_statics.e_score_correction_bias="),
        SHARED_EXPERTS[0],
        SHARED_EXPERTS[1],
        SHARED_EXPERTS[2],
    ],
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `Ernie4_5_MoeConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 103_424,
        "hidden_size": 2560,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "moe_k": 6,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "tie_word_embeddings": true,
    })
}
