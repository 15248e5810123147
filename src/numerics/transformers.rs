//! `transformers`: what eager transformers models compute in a dtype of torch.
//!
//! Weights and activations are of that dtype, and every operation rounds its result to it once. Inside an
//! operation torch computes in `f32`: sums of products, the statistics of a norm (which is rounded before it is
//! multiplied with its weight), the softmax, RoPE's cosines and sines. In `f32` nothing is rounded.

use std::ops::Range;

use half::{bf16, f16};

use crate::numerics::{F32, Numerics};
use crate::ops::attention::Mask;
use crate::ops::linear::{dot, product};
use crate::ops::rope::{Rope, RopeTable};
use crate::quant::{self, decode_row};
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};

/// Computes as a transformers model of that dtype does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transformers {
    /// Single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// Half precision.
    F16,
}

impl Transformers {
    fn round(self, value: f32) -> f32 {
        match self {
            Transformers::F32 => value,
            Transformers::Bf16 => bf16::from_f32(value).to_f32(),
            Transformers::F16 => f16::from_f32(value).to_f32(),
        }
    }

    fn rounded(self, x: Tensor) -> Tensor {
        x.map(|value| self.round(value))
    }
}

impl Numerics for Transformers {
    fn name(&self) -> &'static str {
        "transformers"
    }

    fn weight_types(&self) -> &'static [DType] {
        quant::DECODABLE
    }

    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor {
        self.rounded(F32.embed(table, tokens))
    }

    fn rms_norm(&self, x: &Tensor, weight: &[f32], eps: f32) -> Tensor {
        let normed = self.rounded(F32.rms_norm(x, &vec![1.0; weight.len()], eps));
        let weighted = normed
            .data()
            .iter()
            .zip(weight.iter().cycle())
            .map(|(x, &weight)| self.round(x * self.round(weight)));
        Tensor::new(x.shape(), weighted.collect())
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        product(x.rows(), w.rows, |output, column| {
            let mut weights = vec![0.0; w.cols];
            decode_row(w.dtype, w.row(output), &mut weights);
            weights.iter_mut().for_each(|weight| *weight = self.round(*weight));
            let rows = column.iter_mut().enumerate();
            rows.for_each(|(token, out)| *out = self.round(dot(x.row(token), &weights)));
        })
    }

    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable {
        F32.rope_table(rope, positions).rounded(|value| self.round(value))
    }

    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor {
        table.rotate(x, |value| self.round(value))
    }

    fn cache_type(&self) -> DType {
        match self {
            Transformers::F32 => DType::F32,
            Transformers::Bf16 => DType::BF16,
            Transformers::F16 => DType::F16,
        }
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        x
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: f32) -> Tensor {
        let products = self.rounded(F32.scores(q, k, 1.0));
        products.map(|product| self.round(product * scale))
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        self.rounded(F32.softmax(scores, mask))
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        self.rounded(F32.context(weights, v))
    }

    fn silu_gate(&self, gate: &Tensor, up: &Tensor) -> Tensor {
        let one = Tensor::new(gate.shape(), vec![1.0; gate.data().len()]);
        let activated = self.rounded(F32.silu_gate(gate, &one));
        let gated = activated.data().iter().zip(up.data()).map(|(gate, up)| self.round(gate * up));
        Tensor::new(up.shape(), gated.collect())
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        self.rounded(F32.add(a, b))
    }

    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor {
        F32.probabilities(logits, temperature)
    }
}
