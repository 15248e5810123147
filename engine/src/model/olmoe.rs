//! OLMoE (OLMo team, 2024): experts instead of one feed-forward block. The experts' weights are not divided by
//! their sum. One norm covers all query heads of a token, and another one all key heads.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, BlockShape, ExpertFiles, Family, QkNorm};
use crate::model::llama;
use crate::tensor::RopePairing;

/// Settings of OLMoE.
pub(crate) const FAMILY: Family = Family {
    architecture: "olmoe",
    gguf_names: &["olmoe"],
    model_types: &["olmoe"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { qk_norm: QkNorm::AllHeads, ..BlockShape::LLAMA },
    experts: Some(ExpertFiles {
        normalised: Some("norm_topk_prob"),
        gguf_normalised: Some(false),
        is_rounded: true,
        ..ExpertFiles::MIXTRAL
    }),
    biases: BiasRules::NONE,
    config_defaults,
    ..llama::FAMILY
};

/// Returns the defaults of transformers' `OlmoeConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 50_304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": false,
        "tie_word_embeddings": false,
    })
}
