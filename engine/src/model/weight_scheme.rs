//! Quantisation schemes of whole models: the rounding of each matrix.

use crate::model::Model;
use crate::quant::{CodeType, WeightRounding};
use crate::weight::{DType, Matrix};

/// A way to quantise the weights of a whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightScheme {
    /// FP8 (E4M3) with a scale for each output channel; embeddings and head are not quantised.
    Fp8Channel,
    /// FP8 (E4M3) with a scale for each matrix; embeddings and head are not quantised.
    Fp8Tensor,
    /// 8-bit integers with a scale for each output channel; embeddings and head are not quantised.
    Int8Channel,
    /// GGUF Q8_0.
    Q8_0,
    /// GGUF Q6_K.
    Q6K,
    /// GGUF Q4_K_M: Q4_K, and Q6_K for the head and some matrices.
    Q4KM,
    /// GGUF Q4_0, with a head in Q6_K.
    Q4_0,
}

impl WeightScheme {
    /// All schemes, sorted from small to large errors.
    pub const ALL: [Self; 7] =
        [Self::Q8_0, Self::Int8Channel, Self::Q6K, Self::Fp8Channel, Self::Fp8Tensor, Self::Q4KM, Self::Q4_0];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            WeightScheme::Fp8Channel => "fp8-channel",
            WeightScheme::Fp8Tensor => "fp8-tensor",
            WeightScheme::Int8Channel => "int8-channel",
            WeightScheme::Q8_0 => "q8_0",
            WeightScheme::Q6K => "q6_k",
            WeightScheme::Q4KM => "q4_k_m",
            WeightScheme::Q4_0 => "q4_0",
        }
    }

    /// Returns a description in one line.
    pub fn meaning(self) -> &'static str {
        match self {
            WeightScheme::Fp8Channel => "FP8 (E4M3) weights with a scale for each output channel",
            WeightScheme::Fp8Tensor => "FP8 (E4M3) weights with a scale for each matrix",
            WeightScheme::Int8Channel => "8-bit integer weights with a scale for each output channel",
            WeightScheme::Q8_0 => "GGUF Q8_0",
            WeightScheme::Q6K => "GGUF Q6_K",
            WeightScheme::Q4KM => "GGUF Q4_K_M without an importance matrix",
            WeightScheme::Q4_0 => "GGUF Q4_0 without an importance matrix",
        }
    }

    /// Returns true for a type of GGUF files.
    pub fn is_of_ggml(self) -> bool {
        !matches!(self, WeightScheme::Fp8Channel | WeightScheme::Fp8Tensor | WeightScheme::Int8Channel)
    }

    /// Returns the rounding of each quantised matrix.
    pub fn roundings(self, model: &dyn Model) -> Vec<(&Matrix, WeightRounding)> {
        let layers = model.dimensions().n_layers;
        let mut roundings = Vec::new();
        for layer in 0..layers {
            let named = model.layer_matrices(layer).into_iter().filter(|(name, _)| !name.starts_with(ROUTER));
            roundings.extend(named.map(|(name, w)| (w, self.in_layer(name, w, layer, layers))));
        }
        let head = std::ptr::from_ref(model.head().row(0));
        for (_, w) in model.outer_matrices() {
            let is_head = std::ptr::eq(head, w.row(0));
            roundings.extend(self.outside(w, is_head).map(|rounding| (w, rounding)));
        }
        roundings
    }

    fn in_layer(self, name: &str, w: &Matrix, layer: usize, layers: usize) -> WeightRounding {
        let is_fine = ["attn_v", "ffn_down"].iter().any(|start| name.starts_with(start));
        match self {
            WeightScheme::Fp8Channel => WeightRounding::Row(CodeType::E4m3),
            WeightScheme::Fp8Tensor => WeightRounding::Tensor(CodeType::E4m3),
            WeightScheme::Int8Channel => WeightRounding::Row(CodeType::Int8),
            WeightScheme::Q8_0 => WeightRounding::Blocks(DType::Q8_0),
            WeightScheme::Q4_0 => WeightRounding::Blocks(DType::Q4_0),
            WeightScheme::Q6K => blocks(DType::Q6_K, w),
            WeightScheme::Q4KM if is_fine && has_more_bits(layer, layers) => blocks(DType::Q6_K, w),
            WeightScheme::Q4KM => blocks(DType::Q4_K, w),
        }
    }

    fn outside(self, w: &Matrix, is_head: bool) -> Option<WeightRounding> {
        match self {
            WeightScheme::Fp8Channel | WeightScheme::Fp8Tensor | WeightScheme::Int8Channel => None,
            WeightScheme::Q8_0 => Some(WeightRounding::Blocks(DType::Q8_0)),
            WeightScheme::Q4_0 if !is_head => Some(WeightRounding::Blocks(DType::Q4_0)),
            WeightScheme::Q4KM if !is_head => Some(blocks(DType::Q4_K, w)),
            _ => Some(blocks(DType::Q6_K, w)),
        }
    }
}

/// Name prefix of the router and of the shared expert's gate. These matrices are never quantised.
const ROUTER: &str = "ffn_gate_inp";

/// Returns a K-quant, or the type that llama.cpp uses instead if a row is not a whole number of blocks.
fn blocks(dtype: DType, w: &Matrix) -> WeightRounding {
    WeightRounding::Blocks(match dtype {
        _ if w.cols.is_multiple_of(dtype.block_len()) => dtype,
        DType::Q4_K => DType::Q5_0,
        _ => DType::Q8_0,
    })
}

/// Returns true for the layers in which llama.cpp's Q4_K_M uses Q6_K: the first and last eighth of the layers, and
/// every third layer between them.
fn has_more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}
