//! `f32`: decoded weights and `f32` activations. The default numerics, which compute every formula without extra
//! rounding.

use std::ops::Range;

use crate::kernels::elementwise::{per_column, zip};
use crate::numerics::{Numerics, PLAIN};
use crate::ops::activation::Activation;
use crate::ops::attention::{self, AttentionScale, Mask};
use crate::ops::norm::{LayerNorm, RmsNorm, mean, mean_square, rms_normed, standardised};
use crate::ops::rope::{Rope, RopeTable, direct_angles};
use crate::ops::scaling::Multiplier;
use crate::ops::{addition, embedding, linear, logits};
use crate::quant;
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};

/// Computes in `f32`, regardless of the stored type of the weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct F32;

impl Numerics for F32 {
    fn name(&self) -> &'static str {
        "f32"
    }

    fn weight_types(&self) -> &'static [DType] {
        quant::READABLE
    }

    fn native_types(&self) -> &'static [DType] {
        PLAIN
    }

    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor {
        embedding::embed(table, tokens)
    }

    fn scale(&self, x: &Tensor, by: Multiplier) -> Tensor {
        x.clone().map(|value| by.of(value))
    }

    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor {
        per_column(rms_normed(x, norm.width(), norm.eps), norm.gains(), |x, gain| x * gain)
    }

    fn layer_norm(&self, x: &Tensor, norm: &LayerNorm) -> Tensor {
        norm.scaled(standardised(x, norm.weight.len(), norm.eps, mean, mean_square))
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        linear::linear(x, w)
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        per_column(self.linear(x, w), bias.iter().copied(), |x, bias| x + bias)
    }

    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable {
        RopeTable::new(rope, positions, direct_angles)
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

    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        match scale {
            AttentionScale::Products(factor) => attention::scores(q, k, factor),
            AttentionScale::Queries(factor) | AttentionScale::RoundedQueries(factor) => {
                attention::scores(&self.scale(q, Multiplier::Element(factor)), k, 1.0)
            }
        }
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        attention::softmax(scores, mask)
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        attention::context(weights, v)
    }

    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor {
        activation.of(x)
    }

    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor {
        zip(&activation.of(gate), up, |gate, up| gate * up)
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        addition::add(a, b)
    }

    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor {
        Tensor::new(logits.shape(), logits::probabilities(logits.data(), temperature))
    }
}
