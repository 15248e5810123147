//! Mistral (Jiang et al., 2023) and Ministral: Llama's block, with a sliding window in all layers if the file states one. Its GGUF
//! files have Llama's name, and llama.cpp computes them without the window.

use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::{
    BiasRules, DecoderBlock, DecoderConfig, Family, ForwardContext, LayerWeights, SlidingDefaults,
};
use crate::model::llama::LlamaBlock;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Llama's block.
#[derive(Clone, Debug)]
pub(crate) struct MistralBlock(LlamaBlock);

impl DecoderBlock for MistralBlock {
    /// Architecture settings. Dumps name it Llama, so that dumps of both kinds of files can be compared.
    const FAMILY: Family = Family {
        gguf_names: &[],
        model_types: &["mistral", "ministral"],
        sliding: Some(SlidingDefaults::ALL),
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
