//! `f32`: decoded weights, `f32` activations. The plain reading of every formula, and the default.

use std::ops::Range;

use crate::numerics::Numerics;
use crate::ops::attention::{self, Mask};
use crate::ops::linear::{self, dot, product};
use crate::ops::rope::{Rope, RopeTable, direct_angles};
use crate::ops::{ffn, norm, sampling};
use crate::quant::{self, decode_row};
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};

/// Computes in `f32` whatever the weights are stored as.
#[derive(Clone, Copy, Debug, Default)]
pub struct F32;

impl Numerics for F32 {
    fn name(&self) -> &'static str {
        "f32"
    }

    fn weight_types(&self) -> &'static [DType] {
        quant::DECODABLE
    }

    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor {
        Tensor::from_rows(tokens.len(), table.cols, |token, out| {
            decode_row(table.dtype, table.row(tokens[token] as usize), out);
        })
    }

    fn rms_norm(&self, x: &Tensor, weight: &[f32], eps: f32) -> Tensor {
        norm::rms_norm(x, weight, eps)
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        product(x.rows(), w.rows, |output, column| {
            let mut weights = vec![0.0; w.cols];
            decode_row(w.dtype, w.row(output), &mut weights);
            column.iter_mut().enumerate().for_each(|(token, out)| *out = dot(x.row(token), &weights));
        })
    }

    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable {
        RopeTable::new(rope, positions, |position, out| direct_angles(rope, position, out))
    }

    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor {
        table.rotate(x, |exact| exact)
    }

    fn cache_type(&self) -> DType {
        DType::F32
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        x
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: f32) -> Tensor {
        attention::scores(q, k, scale)
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        attention::softmax(scores, mask)
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        attention::context(weights, v)
    }

    fn silu_gate(&self, gate: &Tensor, up: &Tensor) -> Tensor {
        ffn::silu_gate(gate, up)
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        linear::add(a, b)
    }

    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor {
        Tensor::new(logits.shape(), sampling::probabilities(logits.data(), temperature))
    }
}
