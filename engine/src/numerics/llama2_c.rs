//! `llama2.c`: the arithmetic of `run.c` and `runq.c`, compiled without `-ffast-math`.
//!
//! Everything is `f32`, and every sum runs from the first value to the last, with a rounding at each step. With `int8`
//! groups (version 2), activations are rounded to `int8` before each product. cos, sin, exp and pow come from the C
//! library, as in `run.c`: the same library gives the same bits.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::kernels::elementwise::{per_column, zip};
use crate::kernels::panels::panels;
use crate::numerics::{F32, Numerics, PLAIN};
use crate::ops::activation::Activation;
use crate::ops::attention::{self, AttentionScale, Mask};
use crate::ops::norm::{LayerNorm, RmsNorm, per_row};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::scaling::Multiplier;
use crate::quant::llama2c::{self, Groups, QuantisedRow};
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};
use crate::{parallel, quant};

/// Computes as llama2.c does. Operations without a special summation order are those of [`F32`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Llama2C;

/// Types that products read directly: plain types, and the groups of version 2.
const NATIVE: &[DType] = &{
    let [a, b, c] = *PLAIN.first_chunk().expect("there are three plain types");
    [a, b, c, DType::INT8_GROUPS]
};

impl Numerics for Llama2C {
    fn name(&self) -> &'static str {
        "llama2.c"
    }

    fn weight_types(&self) -> &'static [DType] {
        quant::READABLE
    }

    fn native_types(&self) -> &'static [DType] {
        NATIVE
    }

    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor {
        F32.embed(table, tokens)
    }

    fn scale(&self, x: &Tensor, by: Multiplier) -> Tensor {
        F32.scale(x, by)
    }

    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor {
        let normed = per_row(x, norm.width(), |x, out| {
            let mean = x.iter().fold(0.0, |sum, x| sum + x * x) / x.len() as f32;
            let scale = 1.0 / (mean + norm.eps).sqrt();
            out.iter_mut().zip(x).for_each(|(out, x)| *out = scale * x);
        });
        per_column(normed, norm.gains(), |x, gain| gain * x)
    }

    fn layer_norm(&self, x: &Tensor, norm: &LayerNorm) -> Tensor {
        F32.layer_norm(x, norm)
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        match w.group_len() {
            Some(group) => in_groups(x, w, group),
            None => in_sequence(x, w),
        }
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        per_column(self.linear(x, w), bias.iter().copied(), |x, bias| x + bias)
    }

    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable {
        F32.rope_table(rope, positions)
    }

    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor {
        F32.rotate(x, table)
    }

    fn cache_type(&self) -> DType {
        DType::F32
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        x
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        let root = (q.shape()[2] as f32).sqrt();
        match scale {
            // `run.c` divides by the root; other engines multiply by its inverse.
            AttentionScale::Products(factor) if factor == 1.0 / root => {
                attention::scores_by(q, k, |q, k| dot(q, k) / root)
            }
            AttentionScale::Products(factor) => attention::scores_by(q, k, |q, k| dot(q, k) * factor),
            AttentionScale::Queries(factor) | AttentionScale::RoundedQueries(factor) => {
                attention::scores_by(&self.scale(q, Multiplier::Element(factor)), k, dot)
            }
        }
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        attention::softmax_by(scores, mask, softmax_row)
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        context(weights, v)
    }

    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor {
        match activation {
            Activation::Silu => x.clone().map(silu),
            _ => F32.activation(x, activation),
        }
    }

    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor {
        zip(&self.activation(gate, activation), up, |gate, up| gate * up)
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        F32.add(a, b)
    }

    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor {
        let scaled = logits.clone().map(|logit| logit / temperature);
        let mut probabilities = vec![0.0; scaled.data().len()];
        softmax_row(scaled.data(), &mut probabilities);
        Tensor::new(logits.shape(), probabilities)
    }
}

fn in_sequence(x: &Tensor, w: &Matrix) -> Tensor {
    let activations: Vec<&[f32]> = (0..x.rows()).map(|token| x.row(token)).collect();
    let fill = llama2c::products();
    panels(x.rows(), w.rows, w.cols, |outputs, columns| match w.dtype {
        DType::F32 => fill(w.row_range(outputs), &activations, columns),
        _ => fill(decoded(w, outputs).as_bytes(), &activations, columns),
    })
}

/// Returns several decoded rows in `f32`, concatenated.
fn decoded(w: &Matrix, rows: Range<usize>) -> Vec<f32> {
    let mut values = vec![0.0; rows.len() * w.cols];
    rows.zip(values.chunks_mut(w.cols)).for_each(|(row, out)| quant::decode_matrix_row(w, row, out));
    values
}

fn in_groups(x: &Tensor, w: &Matrix, group: usize) -> Tensor {
    let activations = parallel::map(x.rows(), w.cols, |token| QuantisedRow::of(x.row(token), group));
    let fill = llama2c::group_products();
    panels(x.rows(), w.rows, w.cols, |outputs, columns| {
        let weights = Groups { codes: w.row_range(outputs.clone()), scales: w.scale_range(outputs) };
        fill(weights, &activations, columns);
    })
}

/// Computes a dot product by summing from the first product to the last.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

/// Computes `weights · v`, from the first key to the last: `[H, T, S]`, `[S, Hkv, D]` to `[T, H·D]`.
fn context(weights: &Tensor, v: &Tensor) -> Tensor {
    let &[heads, tokens, keys] = weights.shape() else { panic!("weights are [H, T, S]") };
    let (group, head_dim) = (heads / v.shape()[1], v.shape()[2]);
    Tensor::from_rows(tokens, heads * head_dim, |token, out| {
        for (head, out) in out.chunks_mut(head_dim).enumerate() {
            let weights = &weights.row(head)[token * keys..][..keys];
            for (key, &weight) in weights.iter().enumerate() {
                let value = attention::head_of(v, key, head / group);
                out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
            }
        }
    })
}

/// Computes softmax of one row: exponentials are summed in order, then divided by the sum.
fn softmax_row(row: &[f32], out: &mut [f32]) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, |max, x| if x > max { x } else { max });
    out.iter_mut().zip(row).for_each(|(out, x)| *out = (x - max).exp());
    let sum = out.iter().fold(0.0, |sum, x| sum + x);
    out.iter_mut().for_each(|x| *x /= sum);
}

/// Computes SiLU: x times the rounded logistic function.
fn silu(x: f32) -> f32 {
    x * (1.0 / (1.0 + (-x).exp()))
}
