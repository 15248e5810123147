//! Mistral (Jiang et al., 2023) and Ministral: Llama's block, with a sliding window in all layers if the file states one. Its GGUF
//! files have Llama's name, and llama.cpp computes them without the window.

use crate::model::decoder::{BiasRules, Family, SlidingDefaults};
use crate::model::llama;

/// Settings of Mistral. Dumps name it Llama, as GGUF files do, so that dumps of both kinds of files can be compared.
pub(crate) const FAMILY: Family = Family {
    gguf_names: &[],
    model_types: &["mistral", "ministral", "mistral3"],
    sliding: Some(SlidingDefaults::ALL),
    biases: BiasRules::NONE,
    ..llama::FAMILY
};
