//! Mixtures of experts of Qwen 1.5 and 2 (Qwen team, 2024): Qwen 2's block with experts instead of one feed-forward
//! block, and a shared expert that every token uses.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::cache::KvLayer;
use crate::model::decoder::{DecoderBlock, DecoderConfig, ExpertFiles, Family, ForwardContext, LayerWeights};
use crate::model::mixtral::MixtralBlock;
use crate::model::qwen2::Qwen2Block;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Mixtral's block, with biases and a shared expert as the file has them.
#[derive(Clone, Debug)]
pub(crate) struct Qwen2MoeBlock(MixtralBlock);

impl DecoderBlock for Qwen2MoeBlock {
    const FAMILY: Family = Family {
        architecture: "qwen2moe",
        gguf_names: &["qwen2moe"],
        model_types: &["qwen2_moe"],
        config_defaults,
        experts: Some(ExpertFiles {
            ffn_size: ["moe_intermediate_size", "expert_feed_forward_length"],
            normalised: Some("norm_topk_prob"),
            gguf_normalised: false,
            shared_ffn_size: Some(["shared_expert_intermediate_size", "expert_shared_feed_forward_length"]),
            is_rounded: true,
            ..ExpertFiles::MIXTRAL
        }),
        ..Qwen2Block::FAMILY
    };

    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        MixtralBlock::load(c, w).map(Self)
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, kv: &mut KvLayer) -> Tensor {
        self.0.forward(x, p, t, kv)
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        self.0.matrices()
    }
}

/// Returns the defaults of transformers' `Qwen2MoeConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": false,
    })
}
