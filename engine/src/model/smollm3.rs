//! SmolLM3 (Hugging Face, 2025): Llama's block; every fourth layer does not rotate queries and keys.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::{BiasRules, DecoderBlock, DecoderConfig, Family, ForwardContext, LayerWeights};
use crate::model::llama::LlamaBlock;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Llama's block.
#[derive(Clone, Debug)]
pub(crate) struct SmolLm3Block(LlamaBlock);

impl DecoderBlock for SmolLm3Block {
    const FAMILY: Family = Family {
        architecture: "smollm3",
        gguf_names: &["smollm3"],
        model_types: &["smollm3"],
        unrotated_every: Some(4),
        config_defaults,
        biases: BiasRules::NONE,
        ..LlamaBlock::FAMILY
    };

    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        LlamaBlock::load(c, w).map(Self)
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        self.0.forward(x, p, t, state)
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        self.0.matrices()
    }
}

/// Returns the defaults of transformers' `SmolLM3Config`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": true,
    })
}
