//! GLM 4 as of 2024 (Z.ai): Llama's block with gate and up projections in one matrix, and biases of queries, keys
//! and values. RoPE rotates a part of each head, in pairs of neighbouring values.

use crate::model::decoder::{BlockShape, Family, FfnShape};
use crate::model::glm4;

/// Settings of GLM 4 as of 2024.
pub(crate) const FAMILY: Family = Family {
    architecture: "chatglm",
    gguf_names: &["chatglm"],
    model_types: &["glm"],
    shape: BlockShape { ffn: FfnShape::FusedGate, ..BlockShape::LLAMA },
    layer_names: &[("ffn_up", "mlp.gate_up_proj")],
    ..glm4::FAMILY
};
