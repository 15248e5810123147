//! OLMo 3 (OLMo team, 2025): OLMo 2's block. Every fourth layer has full attention and possibly scaled RoPE; the
//! others have a sliding window. Its GGUF files and dumps have OLMo 2's architecture name.

use serde_json::{Value, json};

use crate::model::decoder::{BlockShape, Family, HalfNorms, QkNorm, SlidingDefaults, SlidingRope};
use crate::model::olmo2;

/// Settings of OLMo 3.
pub(crate) const FAMILY: Family = Family {
    model_types: &["olmo3"],
    shape: BlockShape { norms: HalfNorms::After, qk_norm: QkNorm::AllHeads, ..BlockShape::LLAMA },
    sliding: Some(SlidingDefaults {
        full_every: Some(4),
        rope: SlidingRope::Unscaled,
        ..SlidingDefaults::ALL
    }),
    config_defaults,
    ..olmo2::FAMILY
};

/// Returns the defaults of transformers' `Olmo3Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 50_304,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": false,
    })
}
