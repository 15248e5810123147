//! GLM 4 as of 2024 (Z.ai): Llama's block with gate and up projections in one matrix, biases of queries, keys and values, and
//! rotation of a part of each head, by neighbours.

use crate::model::decoder::{BlockShape, Family, FfnShape, StandardFamily};
use crate::model::glm4::Glm4Family;

/// Settings of GLM 4 as of 2024.
#[derive(Clone, Debug)]
pub(crate) struct GlmFamily;

impl StandardFamily for GlmFamily {
    const FAMILY: Family = Family {
        architecture: "chatglm",
        gguf_names: &["chatglm"],
        model_types: &["glm"],
        shape: BlockShape { ffn: FfnShape::FusedGate, ..BlockShape::LLAMA },
        layer_names: &[("ffn_up", "mlp.gate_up_proj")],
        ..Glm4Family::FAMILY
    };
}
