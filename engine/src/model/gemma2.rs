//! Gemma 2 (Gemma team, 2024): Gemma 3's block without norms of queries and keys. Scores and logits are
//! soft-capped, and every other layer has a sliding window.

use serde_json::{Value, json};

use crate::model::decoder::{BiasRules, BlockShape, Family, HalfNorms, NumberKey, SlidingDefaults};
use crate::model::gemma3::{self, attn_scale};

/// Settings of Gemma 2.
pub(crate) const FAMILY: Family = Family {
    architecture: "gemma2",
    gguf_names: &["gemma2"],
    model_types: &["gemma2"],
    shape: BlockShape { norms: HalfNorms::Around, ..BlockShape::LLAMA },
    attn_scale: |c| attn_scale(c, 46),
    stated: &[
        NumberKey {
            json: "attn_logit_softcapping",
            gguf: "attn_logit_softcapping",
            default: [Some(50.0); 2],
            set: |config, cap| config.attn_cap = Some(cap),
        },
        NumberKey::logits_cap([Some(30.0); 2]),
    ],
    sliding: Some(SlidingDefaults { full_every: Some(2), ..SlidingDefaults::ALL }),
    config_defaults,
    biases: BiasRules::NONE,
    ..gemma3::FAMILY
};

/// Returns the defaults of transformers' `Gemma2Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 256_000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": true,
    })
}
