//! Arithmetic of ggml's CPU backend outside of weight products, on x86-64 with AVX2 and FMA: its exponential, and the
//! summation order of attention and LayerNorm. Derived from its sources and from gcc's output.
//!
//! Sums have eight lanes: element i goes to lane i % 8. `mul_add` is one instruction where available, with the same
//! bits elsewhere.

mod attention;

use multiversion::multiversion;
use zerocopy::IntoBytes;

pub(super) use self::attention::{
    context, order_of_scores, scores, scores_in_order, softmax, sum_of_exponentials,
};
use crate::kernels::exp::exp;
use crate::ops::attention::largest;
use crate::ops::experts::ExpertOrder;
use crate::parallel;
use crate::quant::{self, DotOrder};
use crate::tensor::Tensor;
use crate::weight::DType;

/// Number of lanes in a SIMD register.
const LANES: usize = 8;

/// Adds the lanes of a register, starting with lanes that are four apart.
#[inline(always)]
fn sum_of([a, b, c, d, e, f, g, h]: [f32; LANES]) -> f32 {
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Computes the dot product of two rows.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    quant::dot(DType::F32, DotOrder::Row)(a.as_bytes(), b.as_bytes())
}

/// Returns the mean of a row for LayerNorm: the sum is `f64`, the division `f32`.
pub(super) fn mean(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
    sum as f32 / values.len() as f32
}

/// Returns the mean square of a row for LayerNorm: groups of eight are summed in `f32`, the groups and the remaining
/// elements in `f64`.
pub(super) fn mean_square(values: &[f32]) -> f32 {
    let (eights, rest) = values.as_chunks::<LANES>();
    let squares = |eight: &[f32; LANES]| f64::from(sum_of(eight.map(|value| value * value)));
    let whole: f64 = eights.iter().map(squares).sum();
    let sum = rest.iter().fold(whole, |sum, &value| sum + f64::from(value * value));
    (sum / values.len() as f64) as f32
}

/// Computes softmax of each whole row. Elements after whole registers use the C library's exponential.
pub(super) fn likelihoods(logits: &Tensor) -> Tensor {
    Tensor::from_rows(logits.rows(), logits.row_len(), |row, out| likelihoods_of(logits.row(row), out))
}

/// Computes softmax of the chosen experts' logits, largest first: `[T, k]`.
pub(super) fn softmax_of_chosen(logits: &Tensor) -> Tensor {
    Tensor::from_rows(logits.rows(), logits.row_len(), |row, out| {
        let order = ExpertOrder::Scores.of(logits.row(row));
        let sorted: Vec<f32> = order.iter().map(|&at| logits.row(row)[at]).collect();
        let mut weights = vec![0.0; sorted.len()];
        likelihoods_of(&sorted, &mut weights);
        order.iter().zip(weights).for_each(|(&at, weight)| out[at] = weight);
    })
}

fn likelihoods_of(logits: &[f32], out: &mut [f32]) {
    let max = largest(logits);
    let whole = logits.len() / LANES * LANES;
    for (out, &logit) in out[..whole].iter_mut().zip(logits) {
        *out = exp(logit - max);
    }
    for (out, &logit) in out[whole..].iter_mut().zip(&logits[whole..]) {
        *out = (logit - max).exp();
    }
    let (eights, rest) = out.as_chunks::<LANES>();
    let whole: f64 = eights.iter().map(|eight| f64::from(sum_of(*eight))).sum();
    let sum = rest.iter().fold(whole, |sum, &value| sum + f64::from(value));
    let inverse = (1.0 / sum) as f32;
    out.iter_mut().for_each(|value| *value *= inverse);
}

/// Computes `silu(gate) · up`, row by row. Elements after whole registers use the C library's exponential.
pub(super) fn swiglu(gate: &Tensor, up: &Tensor) -> Tensor {
    let width = gate.shape().last().copied().unwrap_or(1);
    let mut out = vec![0.0; gate.data().len()];
    parallel::chunks(&mut out, width, width, |row, out| {
        let [gate, up] = [gate, up].map(|x| &x.data()[row * width..][..width]);
        swiglu_row(gate, up, out);
    });
    Tensor::new(gate.shape(), out)
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn swiglu_row(gate: &[f32], up: &[f32], out: &mut [f32]) {
    let whole = gate.len() / LANES * LANES;
    for ((out, &gate), &up) in out[..whole].iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-gate)) * up;
    }
    for ((out, &gate), &up) in out[whole..].iter_mut().zip(&gate[whole..]).zip(&up[whole..]) {
        *out = gate / (1.0 + (-gate).exp()) * up;
    }
}
