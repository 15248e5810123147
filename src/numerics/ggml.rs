//! What ggml's CPU backend computes outside of products with a matrix of weights, on x86-64 with AVX2 and FMA: its
//! exponential, and the order in which attention and LayerNorm add up. Read in its sources and in what gcc made of them.
//!
//! Sums have eight lanes: element i goes to lane i % 8. `mul_add` is one instruction where the machine has it, and the
//! same bits where it has not.

use std::borrow::Cow;
use std::ops::Range;

use multiversion::multiversion;
use rayon::prelude::*;
use zerocopy::IntoBytes;

use crate::ops::attention::{Mask, head_of, per_head_and_token, seen};
use crate::ops::exp::exp;
use crate::quant::{self, Kernel, quantise_row};
use crate::tensor::Tensor;
use crate::weight::DType;

#[cfg(target_endian = "big")]
compile_error!("keys are read where they lie, as little-endian bytes");

/// Lanes of a register.
const LANES: usize = 8;

/// What ggml pads the cache to: empty cells have keys and values of zero, and are masked.
const CELLS: usize = 256;

/// `scale · q·k`, with queries and keys of the cache's type: `[T, H, D]`, `[S, Hkv, D]` to `[H, T, S]`.
pub(super) fn scores(q: &Tensor, k: &Tensor, cache: DType, kernel: Kernel, scale: f32) -> Tensor {
    let &[tokens, heads, head_dim] = q.shape() else { panic!("queries are [T, H, D]") };
    let (keys, group) = (k.shape()[0], heads / k.shape()[1]);
    let dtype = narrowest(cache, kernel, head_dim);
    let dot = quant::dot(dtype, kernel);
    per_head_and_token(heads, tokens, keys, |head, token, out| {
        let query = stored(dtype, head_of(q, token, head));
        for (key, out) in out.iter_mut().enumerate() {
            *out = dot(&stored(dtype, head_of(k, key, head / group)), &query) * scale;
        }
    })
}

/// The kernel for `q·k` of llama.cpp. An f32 cache leaves the queries where they lie, side by side, which llamafile's
/// product for several tokens cannot read, unless there is one head.
pub(super) fn kernel_of_scores(q: &Tensor, cache: DType) -> Kernel {
    let &[tokens, heads, head_dim] = q.shape() else { panic!("queries are [T, H, D]") };
    let together = if cache == DType::F32 && heads > 1 { 1 } else { tokens };
    Kernel::of(cache, together, CELLS, head_dim)
}

/// The type to multiply in. Values of an f16 cache are multiplied as the f32 that they are: that differs only where
/// something is left over behind whole steps of 32.
fn narrowest(cache: DType, kernel: Kernel, head_dim: usize) -> DType {
    let is_whole = kernel == Kernel::Batch || head_dim.is_multiple_of(32);
    if is_whole { DType::F32 } else { cache }
}

fn stored(dtype: DType, row: &[f32]) -> Cow<'_, [u8]> {
    if dtype == DType::F32 {
        return Cow::Borrowed(row.as_bytes());
    }
    let mut bytes = vec![0; dtype.bytes_for(row.len()).expect("a float has no blocks")];
    quantise_row(dtype, row, &mut bytes);
    Cow::Owned(bytes)
}

/// Softmax of each row of `scores` (`[H, T, S]`) over the keys its token may see; the others get 0.
pub(super) fn softmax(scores: &Tensor, mask: Mask) -> Tensor {
    let &[heads, tokens, keys] = scores.shape() else { panic!("scores are [H, T, S]") };
    per_head_and_token(heads, tokens, keys, |head, token, out| {
        softmax_row(&scores.row(head)[token * keys..][..keys], mask.visible(token, keys), out);
    })
}

/// Exponentials are added by eights in `f32`, the eights in `f64`.
#[multiversion(targets("x86_64+avx2+fma"))]
fn softmax_row(row: &[f32], visible: Range<usize>, out: &mut [f32]) {
    let max = row[visible.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for (out, &score) in out[visible.clone()].iter_mut().zip(&row[visible.clone()]) {
        *out = exp(score - max);
    }
    let sum: f64 = out.chunks(LANES).map(|eight| f64::from(sum_of(padded(eight)))).sum();
    let inverse = (1.0 / sum) as f32;
    out[visible].iter_mut().for_each(|value| *value *= inverse);
}

#[inline(always)]
fn padded(values: &[f32]) -> [f32; LANES] {
    std::array::from_fn(|lane| values.get(lane).copied().unwrap_or(0.0))
}

/// The lanes of a register, those four apart first.
#[inline(always)]
fn sum_of([a, b, c, d, e, f, g, h]: [f32; LANES]) -> f32 {
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// `weights · v`, heads merged: `[H, T, S]`, `[S, Hkv, D]` to `[T, H·D]`.
pub(super) fn context(weights: &Tensor, v: &Tensor) -> Tensor {
    let &[heads, tokens, keys] = weights.shape() else { panic!("weights are [H, T, S]") };
    let (group, head_dim) = (heads / v.shape()[1], v.shape()[2]);
    // ggml's matrix is v turned round: a row for each value of a head, a column for each cell.
    let add = match Kernel::of(DType::F32, tokens, head_dim, CELLS) {
        Kernel::Batch => add_in_one_register,
        Kernel::Row => add_in_four_registers,
    };
    // Zero times infinity or NaN is none: only of numbers those can be left out that count for nothing.
    let are_numbers = v.data().iter().all(|value| value.is_finite());
    Tensor::from_rows(tokens, heads * head_dim, |token, out| {
        for (head, out) in out.chunks_mut(head_dim).enumerate() {
            let weights = &weights.row(head)[token * keys..][..keys];
            let seen = if are_numbers { seen(weights, keys) } else { keys };
            add(&weights[..seen], &v.data()[head / group * head_dim..], v.row_len(), out);
        }
    })
}

/// `Σ weights[key] · values[key]` in lanes of keys; `values` are `stride` apart, as long as `out` each.
#[multiversion(targets("x86_64+avx2+fma"))]
fn add_in_one_register(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
    let lanes = lanes_of_keys(LANES, |key| key % LANES, weights, values, stride, out.len());
    add_up(lanes, [4, 2, 1], out);
}

/// The same with four registers in turn, which are added up first. Of the last four lanes neighbours are added before
/// those two apart: the two in the middle change places for it.
#[multiversion(targets("x86_64+avx2+fma"))]
fn add_in_four_registers(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
    let lane = |key: usize| key % (4 * LANES) / 4 * 4 + [0, 2, 1, 3][key % 4];
    let lanes = lanes_of_keys(4 * LANES, lane, weights, values, stride, out.len());
    add_up(lanes, [16, 8, 4, 2, 1], out);
}

/// `count` lanes of sums, each for all columns; `lane` tells where a key goes.
#[inline(always)]
fn lanes_of_keys(
    count: usize,
    lane: impl Fn(usize) -> usize,
    weights: &[f32],
    values: &[f32],
    stride: usize,
    width: usize,
) -> Vec<f32> {
    let mut lanes = vec![0.0f32; count * width];
    for (key, &weight) in weights.iter().enumerate() {
        let sums = &mut lanes[lane(key) * width..][..width];
        let values = &values[key * stride..][..width];
        sums.iter_mut().zip(values).for_each(|(sum, &value)| *sum = weight.mul_add(value, *sum));
    }
    lanes
}

/// Adds up lanes, in each step those that lie `distance` apart, until one is left.
#[inline(always)]
fn add_up<const N: usize>(mut lanes: Vec<f32>, distances: [usize; N], out: &mut [f32]) {
    let width = out.len();
    for distance in distances {
        let (low, high) = lanes.split_at_mut(distance * width);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
    }
    out.copy_from_slice(&lanes[..width]);
}

/// The mean of a row for LayerNorm: the sum is `f64`, the division `f32`.
pub(super) fn mean(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
    sum as f32 / values.len() as f32
}

/// The mean of the squares for LayerNorm: added by eights in `f32`, the eights and what is left over in `f64`.
pub(super) fn mean_square(values: &[f32]) -> f32 {
    let (eights, rest) = values.as_chunks::<LANES>();
    let squares = |eight: &[f32; LANES]| f64::from(sum_of(eight.map(|value| value * value)));
    let whole: f64 = eights.iter().map(squares).sum();
    let sum = rest.iter().fold(whole, |sum, &value| sum + f64::from(value * value));
    (sum / values.len() as f64) as f32
}

/// `silu(gate) · up`, row by row: what is left over behind whole registers takes the C library's exponential.
pub(super) fn swiglu(gate: &Tensor, up: &Tensor) -> Tensor {
    let width = gate.row_len();
    let mut out = vec![0.0; gate.data().len()];
    let rows = out.par_chunks_mut(width).zip(gate.data().par_chunks(width)).zip(up.data().par_chunks(width));
    rows.for_each(|((out, gate), up)| swiglu_row(gate, up, out));
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
