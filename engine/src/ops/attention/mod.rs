//! Scaled dot-product attention (Vaswani et al., 2017) in three operations:
//!
//! - scores: `scale · q·k`, `[T, H, D]`, `[S, Hkv, D]` to `[H, T, S]`
//! - softmax over the keys that the mask shows: `[H, T, S]`
//! - context: `Σ weights · v` with heads merged, `[H, T, S]`, `[S, Hkv, D]` to `[T, H·D]`
//!
//! With grouped queries (Ainslie et al., 2023), query head `h` reads key-value head `h / (H / Hkv)`.

pub(crate) mod exact;
pub(crate) mod faults;

use std::ops::Range;

use multiversion::multiversion;

use crate::kernels::dot::{Kernel, LANES};
use crate::kernels::exp::exp;
use crate::kernels::product::{PartialSums, StridedRows, cut, fill};
use crate::parallel;
use crate::tensor::Tensor;

/// Attention mask: the keys that a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// Index of the pass's first token among the keys: its position minus the number of dropped keys.
    pub position: usize,
    /// Maximum number of keys that a query sees, including its own. `None` for no limit.
    pub window: Option<usize>,
    /// Number of keys that the cache has already dropped, if windows are chunks of positions: a query then sees only
    /// keys of its own chunk. `None` if windows are the latest keys.
    pub chunks: Option<usize>,
}

impl Mask {
    /// Mask that shows every key to every query.
    pub(crate) const NONE: Self = Self { position: usize::MAX / 2, window: None, chunks: None };

    /// Returns the indices of the keys that a token of the pass sees: itself and earlier ones within the window.
    pub fn visible(self, token: usize, keys: usize) -> Range<usize> {
        let end = self.position + token + 1;
        let seen = match (self.window, self.chunks) {
            (None, _) => end,
            (Some(window), None) => window,
            (Some(chunk), Some(dropped)) => (dropped + end - 1) % chunk + 1,
        };
        end.saturating_sub(seen).min(keys)..end.min(keys)
    }

    /// Returns the mask over the keys that are left after the first keys were dropped.
    pub(crate) fn without(self, dropped: usize) -> Self {
        let position = self.position - dropped;
        Self { position, chunks: self.chunks.map(|_| dropped), ..self }
    }
}

/// Factor of q·k, and the operand that it is applied to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AttentionScale {
    /// The products: `(q·k) · scale`.
    Products(f32),
    /// The queries, before the dot product: `(q · scale)·k`. Some engines scale the products instead.
    Queries(f32),
    /// The queries, as a separate operation in all engines, whose results are rounded.
    RoundedQueries(f32),
}

impl AttentionScale {
    /// Returns the factor of the scores before the softmax.
    pub fn factor(self) -> f32 {
        match self {
            AttentionScale::Products(factor)
            | AttentionScale::Queries(factor)
            | AttentionScale::RoundedQueries(factor) => factor,
        }
    }
}

/// Computes `scale · q·k` for every head, query and key: `[T, H, D]`, `[S, Hkv, D]` to `[H, T, S]`.
pub fn scores(q: &Tensor, k: &Tensor, scale: f32) -> Tensor {
    let (tokens, heads, keys) = (q.shape()[0], q.shape()[1], k.shape()[0]);
    let (group, kernel) = (heads / k.shape()[1], Kernel::fastest());
    let mut data = vec![0.0; heads * tokens * keys];
    let each = tokens * keys * q.shape()[2] / parallel::PRODUCTS;
    parallel::chunks(&mut data, tokens * keys, each, |head, scores| {
        let (queries, keys_of_head) = (StridedRows::head_of(q, head), StridedRows::head_of(k, head / group));
        fill(kernel, PartialSums::Cut, queries, &keys_of_head, scores.chunks_mut(keys).collect());
        scores.iter_mut().for_each(|score| *score *= scale);
    });
    Tensor::new(&[heads, tokens, keys], data)
}

/// Computes `score(query, key)` for every head, query and key: `[T, H, D]`, `[S, Hkv, D]` to `[H, T, S]`.
pub(crate) fn scores_by(q: &Tensor, k: &Tensor, score: impl Fn(&[f32], &[f32]) -> f32 + Sync) -> Tensor {
    let (tokens, heads, keys) = (q.shape()[0], q.shape()[1], k.shape()[0]);
    let group = heads / k.shape()[1];
    per_head_and_token(heads, tokens, keys, |head, token, out| {
        let query = head_of(q, token, head);
        for (key, out) in out.iter_mut().enumerate() {
            *out = score(query, head_of(k, key, head / group));
        }
    })
}

/// Computes softmax of each row of `scores` (`[H, T, S]`) over the keys that its token sees; hidden keys get 0.
pub fn softmax(scores: &Tensor, mask: Mask) -> Tensor {
    softmax_by(scores, mask, softmax_row)
}

/// Computes masked softmax with a sink in each head, `[H]`: a logit that counts in the sum and has no weight (Xiao et al.,
/// 2023). `round` rounds the distances from the largest logit.
pub(crate) fn softmax_with_sinks(
    scores: &Tensor,
    mask: Mask,
    sinks: &[f32],
    round: impl Fn(f32) -> f32 + Sync,
) -> Tensor {
    let &[heads, tokens, keys] = scores.shape() else { panic!("scores are [H, T, S]") };
    per_head_and_token(heads, tokens, keys, |head, token, out| {
        let visible = mask.visible(token, keys);
        let row = &scores.row(head)[token * keys..][visible.clone()];
        let max = largest(row).max(sinks[head]);
        let below = |logit: f32| exp(round(logit - max));
        out[visible.clone()].iter_mut().zip(row).for_each(|(out, &score)| *out = below(score));
        let sum: f64 = out[visible.clone()].iter().map(|&value| f64::from(value)).sum();
        let scale = (1.0 / (sum + f64::from(below(sinks[head])))) as f32;
        out[visible].iter_mut().for_each(|value| *value *= scale);
    })
}

/// Computes masked softmax with a given function for one row.
pub(crate) fn softmax_by(scores: &Tensor, mask: Mask, of_row: impl Fn(&[f32], &mut [f32]) + Sync) -> Tensor {
    let &[heads, tokens, keys] = scores.shape() else { panic!("scores are [H, T, S]") };
    per_head_and_token(heads, tokens, keys, |head, token, out| {
        let row = &scores.row(head)[token * keys..][..keys];
        let visible = mask.visible(token, keys);
        of_row(&row[visible.clone()], &mut out[visible]);
    })
}

/// Computes softmax of one row: exponentials in `f32`, summed in `f64`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
pub fn softmax_row(row: &[f32], out: &mut [f32]) {
    let max = largest(row);
    let mut sums = [0.0f64; LANES];
    let (steps, rest) = out.as_chunks_mut::<LANES>();
    let (row_steps, row_rest) = row.as_chunks::<LANES>();
    for (out, row) in steps.iter_mut().zip(row_steps) {
        for lane in 0..LANES {
            out[lane] = exp(row[lane] - max);
            sums[lane] += f64::from(out[lane]);
        }
    }
    for ((out, &value), sum) in rest.iter_mut().zip(row_rest).zip(&mut sums) {
        *out = exp(value - max);
        *sum += f64::from(*out);
    }
    let scale = (1.0 / sums.iter().sum::<f64>()) as f32;
    out.iter_mut().for_each(|value| *value *= scale);
}

/// Returns the largest value, ignoring NaN.
#[inline(always)]
pub(crate) fn largest(row: &[f32]) -> f32 {
    let (steps, rest) = row.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for step in steps {
        for lane in 0..LANES {
            lanes[lane] = if step[lane] > lanes[lane] { step[lane] } else { lanes[lane] };
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Number of tokens whose last visible key is determined at once.
const TOGETHER: usize = 64;

/// Computes `weights · v` with heads merged: `[H, T, S]`, `[S, Hkv, D]` to `[T, H·D]`.
///
/// Sums over keys in the order of [`crate::kernels::dot`].
pub fn context(weights: &Tensor, v: &Tensor) -> Tensor {
    let &[heads, tokens, keys] = weights.shape() else { panic!("weights are [H, T, S]") };
    let (group, head_dim) = (heads / v.shape()[1], v.shape()[2]);
    let mut data = vec![0.0; tokens * heads * head_dim];
    if tokens == 1 {
        parallel::chunks(&mut data, head_dim, keys * head_dim / parallel::PRODUCTS, |head, out| {
            mixed(weights.row(head), &v.data()[head / group * head_dim..], v.row_len(), out);
        });
        return Tensor::new(&[tokens, heads * head_dim], data);
    }
    let rows = cut(data.chunks_mut(heads * head_dim), head_dim);
    let turned = parallel::map(v.shape()[1], keys * head_dim, |head| turned(v, head));
    // Zero times infinity or NaN is NaN, so keys with zero weight may be skipped only if all values are finite.
    let are_numbers = v.data().iter().all(|value| value.is_finite());
    let each = tokens * keys * head_dim / parallel::PRODUCTS;
    parallel::each(
        rows,
        each,
        || (),
        |(), head, out| {
            let weights = weights.row(head).chunks(TOGETHER * keys);
            for (weights, out) in weights.zip(in_parts(out, TOGETHER)) {
                let seen = if are_numbers { seen(weights, keys) } else { keys };
                let (x, v) = (StridedRows::beginning(weights, keys, seen), &turned[head / group]);
                fill(Kernel::fastest(), PartialSums::Whole, x, &StridedRows::beginning(v, keys, seen), out);
            }
        },
    );
    Tensor::new(&[tokens, heads * head_dim], data)
}

fn in_parts<T>(all: Vec<T>, len: usize) -> impl Iterator<Item = Vec<T>> {
    let mut rest = all.into_iter();
    std::iter::from_fn(move || Some(rest.by_ref().take(len).collect::<Vec<T>>()))
        .take_while(|part| !part.is_empty())
}

/// Returns the number of keys up to the last one that has a nonzero weight in any row; at least one. Each row has
/// `keys` weights.
pub(crate) fn seen(weights: &[f32], keys: usize) -> usize {
    let last = |row: &[f32]| row.iter().rposition(|&weight| weight != 0.0).map_or(1, |last| last + 1);
    weights.chunks(keys).map(last).max().unwrap_or(keys)
}

/// Returns the values of a head transposed: `[D, S]`.
fn turned(v: &Tensor, head: usize) -> Vec<f32> {
    let (keys, head_dim) = (v.rows(), v.shape()[2]);
    let mut turned = vec![0.0; keys * head_dim];
    for key in 0..keys {
        let values = head_of(v, key, head);
        turned[key..].iter_mut().step_by(keys).zip(values).for_each(|(out, value)| *out = *value);
    }
    turned
}

/// Computes the weighted sum of values for one token, in the same summation order as a tile.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn mixed(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
    add_in_lanes::<LANES>(|lane| lane, weights, values, stride, out);
    // A tile adds to zero, so it never returns -0.
    out.iter_mut().for_each(|value| *value += 0.0);
}

/// Computes `Σ weights[key] · values[key]` in `N` lanes of keys. The rows of `values` are `stride` apart and as long as
/// `out`. `place` permutes the lanes, which are then added by halves: lanes N/2 apart first, then N/4, and so on.
#[inline(always)]
pub(crate) fn add_in_lanes<const N: usize>(
    place: impl Fn(usize) -> usize,
    weights: &[f32],
    values: &[f32],
    stride: usize,
    out: &mut [f32],
) {
    let (wide, rest) = out.as_chunks_mut::<64>();
    let (narrow, single) = rest.as_chunks_mut::<8>();
    let first = [0, 64 * wide.len(), 64 * wide.len() + 8 * narrow.len()];
    for (at, out) in wide.iter_mut().enumerate() {
        *out = columns::<N, 64>(&place, weights, &values[first[0] + 64 * at..], stride);
    }
    for (at, out) in narrow.iter_mut().enumerate() {
        *out = columns::<N, 8>(&place, weights, &values[first[1] + 8 * at..], stride);
    }
    for (at, out) in single.iter_mut().enumerate() {
        [*out] = columns::<N, 1>(&place, weights, &values[first[2] + at..], stride);
    }
}

/// Computes `W` columns, lane by lane, so that their sums stay in registers.
#[inline(always)]
pub(crate) fn columns<const N: usize, const W: usize>(
    place: &impl Fn(usize) -> usize,
    weights: &[f32],
    values: &[f32],
    stride: usize,
) -> [f32; W] {
    let mut lanes = [[0.0f32; W]; N];
    for lane in 0..N {
        let mut sums = [0.0f32; W];
        for key in (lane..weights.len()).step_by(N) {
            let (weight, values) = (weights[key], &values[key * stride..][..W]);
            for column in 0..W {
                sums[column] = weight.mul_add(values[column], sums[column]);
            }
        }
        lanes[place(lane)] = sums;
    }
    let mut apart = N / 2;
    while apart > 0 {
        let (low, high) = lanes.split_at_mut(apart);
        for (low, high) in low.iter_mut().zip(high) {
            (0..W).for_each(|column| low[column] += high[column]);
        }
        apart /= 2;
    }
    lanes[0]
}

/// Returns one head of one token (or key) of `[T, H, D]`.
pub fn head_of(x: &Tensor, token: usize, head: usize) -> &[f32] {
    let head_dim = x.shape()[2];
    &x.row(token)[head * head_dim..][..head_dim]
}

/// Creates `[H, T, S]`: calls `fill(head, token, row)` for each row of keys, in parallel.
pub(crate) fn per_head_and_token(
    heads: usize,
    tokens: usize,
    keys: usize,
    fill: impl Fn(usize, usize, &mut [f32]) + Sync,
) -> Tensor {
    let mut data = vec![0.0; heads * tokens * keys];
    parallel::chunks(&mut data, keys, 4 * keys, |row, out| fill(row / tokens, row % tokens, out));
    Tensor::new(&[heads, tokens, keys], data)
}
