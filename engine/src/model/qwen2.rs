//! Qwen 2 and 2.5 (Qwen team, 2024): Llama's block with biases in the projections of queries, keys and values.

use crate::model::decoder::{BiasRule, BiasRules, Family};
use crate::model::llama;
use crate::tensor::RopePairing;

/// Settings of Qwen 2 and 2.5.
pub(crate) const FAMILY: Family = Family {
    architecture: "qwen2",
    gguf_names: &["qwen2"],
    model_types: &["qwen2"],
    gguf_pairing: RopePairing::Half,
    biases: BiasRules { qkv: BiasRule::Always, ..BiasRules::NONE },
    ..llama::FAMILY
};
