//! Attention in the summation order of ggml's CPU backend.

use std::ops::Range;
use std::sync::OnceLock;

use multiversion::multiversion;

use super::{LANES, sum_of};
use crate::kernels::exp::exp;
use crate::ops::attention::{Mask, add_in_lanes, columns, head_of, largest, per_head_and_token, seen};
use crate::parallel;
use crate::quant::{self, DotOrder};
use crate::tensor::Tensor;
use crate::weight::DType;

/// Number of cells that ggml pads the cache to. Empty cells have zero keys and values, and are masked.
const CELLS: usize = 256;

/// Number of registers that accumulate a dot product in turn.
const REGISTERS: usize = 4;

/// Computes `scale · q·k`, with queries and keys of the cache's type: `[T, H, D]`, `[S, Hkv, D]` to `[H, T, S]`.
pub(in crate::numerics) fn scores(
    q: &Tensor,
    k: &Tensor,
    cache: DType,
    order: DotOrder,
    scale: f32,
) -> Tensor {
    let head_dim = q.shape()[2];
    match (narrowest(cache, order, head_dim), order) {
        (DType::F32, DotOrder::Batch) if head_dim.is_multiple_of(LANES) => {
            scores_of_batch(q, k, scale, dots_in_one_register)
        }
        (DType::F32, DotOrder::Row) if head_dim.is_multiple_of(REGISTERS * LANES) => {
            scores_of_rows(q, k, scale)
        }
        (dtype, order) => scores_by_dot(q, k, dtype, order, scale),
    }
}

/// Computes the scores of tiled flash attention: operands are not rounded, and each dot product is one sequential
/// sum.
pub(in crate::numerics) fn scores_in_order(q: &Tensor, k: &Tensor, scale: f32) -> Tensor {
    scores_of_batch(q, k, scale, dots_in_order)
}

/// Returns llama.cpp's summation order for `q·k`. With an f32 cache, the queries of several heads are interleaved
/// in memory. llamafile's product for several tokens cannot read that layout, so another kernel is used.
pub(in crate::numerics) fn order_of_scores(q: &Tensor, cache: DType) -> DotOrder {
    let &[tokens, heads, head_dim] = q.shape() else { panic!("queries are [T, H, D]") };
    let together = if cache == DType::F32 && heads > 1 { 1 } else { tokens };
    DotOrder::of(cache, together, CELLS, head_dim)
}

/// Returns the type to multiply in. Values of an f16 cache can be multiplied as f32: the result differs only in the
/// elements after the last whole group of 32.
fn narrowest(cache: DType, order: DotOrder, head_dim: usize) -> DType {
    let is_whole = order == DotOrder::Batch || head_dim.is_multiple_of(REGISTERS * LANES);
    if is_whole && !quant::CACHES.contains(&cache) { DType::F32 } else { cache }
}

/// Computes scores one query and key at a time.
fn scores_by_dot(q: &Tensor, k: &Tensor, dtype: DType, order: DotOrder, scale: f32) -> Tensor {
    let (&[tokens, heads, head_dim], &[keys, key_heads, _]) = (q.shape(), k.shape()) else {
        panic!("queries are [T, H, D], keys [S, Hkv, D]")
    };
    let rows = |x: &Tensor, dtype| quant::quantised_rows(dtype, x.data(), head_dim);
    let (queries, stored) = (rows(q, quant::activation_type(dtype)), rows(k, dtype));
    let dot = quant::dot(dtype, order);
    per_head_and_token(heads, tokens, keys, |head, token, out| {
        let query = &queries[token * heads + head];
        for (key, out) in out.iter_mut().enumerate() {
            *out = dot(&stored[key * key_heads + head * key_heads / heads], query) * scale;
        }
    })
}

/// Computes scores of rows that fill whole registers, with the same bits as [`quant::dot`].
fn scores_of_rows(q: &Tensor, k: &Tensor, scale: f32) -> Tensor {
    let (&[tokens, heads, head_dim], &[keys, key_heads, _]) = (q.shape(), k.shape()) else {
        panic!("queries are [T, H, D], keys [S, Hkv, D]")
    };
    per_head_and_token(heads, tokens, keys, |head, token, out| {
        let keys = &k.data()[head * key_heads / heads * head_dim..];
        dots_in_four_registers(head_of(q, token, head), keys, k.row_len(), scale, out);
    })
}

/// Multiplies a query with each key; keys are `stride` values apart.
#[multiversion(targets("x86_64+avx2+fma"))]
fn dots_in_four_registers(query: &[f32], keys: &[f32], stride: usize, scale: f32, out: &mut [f32]) {
    let (query, _) = query.as_chunks::<{ REGISTERS * LANES }>();
    for (key, out) in keys.chunks(stride).zip(out) {
        let mut lanes = [0.0f32; REGISTERS * LANES];
        for (key, query) in key.as_chunks::<{ REGISTERS * LANES }>().0.iter().zip(query) {
            for lane in 0..REGISTERS * LANES {
                lanes[lane] = key[lane].mul_add(query[lane], lanes[lane]);
            }
        }
        let register = |at: usize| -> f32 {
            let [a, b, c, d] = std::array::from_fn(|register| lanes[register * LANES + at]);
            (a + c) + (b + d)
        };
        let [a, b, c, d, e, f, g, h] = std::array::from_fn(register);
        // The last four lanes are added neighbours first.
        *out = (((a + e) + (b + f)) + ((c + g) + (d + h))) * scale;
    }
}

/// Number of keys that are multiplied at the same time.
const KEYS: usize = 32;

/// Multiplies a query with each key of a block.
type BlockDots = fn(query: &[f32], block: &[f32], scale: f32, out: &mut [f32]);

/// Computes scores in [`quant::dot`]'s order for several tokens, with the same bits. Keys are transposed, so that no
/// sum crosses the lanes of a register.
fn scores_of_batch(q: &Tensor, k: &Tensor, scale: f32, dots: BlockDots) -> Tensor {
    let (&[tokens, heads, head_dim], &[keys, key_heads, _]) = (q.shape(), k.shape()) else {
        panic!("queries are [T, H, D], keys [S, Hkv, D]")
    };
    let turned = parallel::map(key_heads, keys * head_dim, |head| turned(k, head));
    let mut data = vec![0.0; heads * tokens * keys];
    let each = tokens * keys * head_dim / parallel::PRODUCTS;
    parallel::chunks(&mut data, tokens * keys, each, |head, out| {
        let blocks = turned[head * key_heads / heads].chunks(KEYS * head_dim);
        for (block, first) in blocks.zip((0..keys).step_by(KEYS)) {
            for (token, out) in out.chunks_mut(keys).enumerate() {
                let here = first..keys.min(first + KEYS);
                dots(head_of(q, token, head), block, scale, &mut out[here]);
            }
        }
    });
    Tensor::new(&[heads, tokens, keys], data)
}

/// Returns the keys of a head in transposed blocks `[D, 32]`, the last one padded with zeros.
fn turned(k: &Tensor, head: usize) -> Vec<f32> {
    let (keys, head_dim) = (k.rows(), k.shape()[2]);
    let mut turned = vec![0.0; keys.div_ceil(KEYS) * KEYS * head_dim];
    for key in 0..keys {
        let column = turned[key / KEYS * KEYS * head_dim..][key % KEYS..].iter_mut().step_by(KEYS);
        column.zip(head_of(k, key, head)).for_each(|(out, value)| *out = *value);
    }
    turned
}

/// Computes the dot products in the eight lanes of one register.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn dots_in_one_register(query: &[f32], block: &[f32], scale: f32, out: &mut [f32]) {
    let sums = columns::<LANES, KEYS>(&|lane| lane, query, block, KEYS);
    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * scale);
}

/// Computes each dot product as one sequential sum.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn dots_in_order(query: &[f32], block: &[f32], scale: f32, out: &mut [f32]) {
    let sums = columns::<1, KEYS>(&|lane| lane, query, block, KEYS);
    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * scale);
}

/// Computes softmax of each row of `scores` (`[H, T, S]`) over the keys that its token may see. Hidden keys get 0.
/// The exponential of a head's sink is added to the denominator.
pub(in crate::numerics) fn softmax(scores: &Tensor, mask: Mask, sinks: Option<&[f32]>) -> Tensor {
    let &[heads, tokens, keys] = scores.shape() else { panic!("scores are [H, T, S]") };
    per_head_and_token(heads, tokens, keys, |head, token, out| {
        let sink = sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
        softmax_row(&scores.row(head)[token * keys..][..keys], mask.visible(token, keys), sink, out);
    })
}

/// Computes softmax of one row: exponentials are added in groups of eight in `f32`, the groups in `f64`.
#[multiversion(targets("x86_64+avx2+fma"))]
fn softmax_row(row: &[f32], visible: Range<usize>, sink: f32, out: &mut [f32]) {
    let max = largest(&row[visible.clone()]).max(sink);
    for (out, &score) in out[visible.clone()].iter_mut().zip(&row[visible.clone()]) {
        *out = exp(score - max);
    }
    // The weights after the last visible key are zeros.
    let (eights, rest) = out[..visible.end].as_chunks::<LANES>();
    let whole: f64 = eights.iter().map(|eight| f64::from(sum_of(*eight))).sum();
    let sum = whole + f64::from(sum_of(std::array::from_fn(|lane| rest.get(lane).copied().unwrap_or(0.0))));
    // The C library's exponential; 0 without a sink.
    let inverse = (1.0 / (sum + f64::from((sink - max).exp()))) as f32;
    out[visible].iter_mut().for_each(|value| *value *= inverse);
}

/// Sums exp(score - max) in groups of eight over `tile`, the visible keys of the cells from `start` on.
pub(in crate::numerics) fn sum_of_exponentials(
    row: &[f32],
    tile: Range<usize>,
    start: usize,
    max: f32,
) -> f64 {
    let seen = |key: usize| if tile.contains(&key) { exp(row[key] - max) } else { 0.0 };
    let eights = (start..tile.end).step_by(LANES);
    eights.map(|eight| f64::from(sum_of(std::array::from_fn(|lane| seen(eight + lane))))).sum()
}

/// Computes `weights · v` with heads merged: `[H, T, S]`, `[S, Hkv, D]` to `[T, H·D]`.
pub(in crate::numerics) fn context(weights: &Tensor, v: &Tensor) -> Tensor {
    let (&[heads, tokens, keys], &[_, key_heads, head_dim]) = (weights.shape(), v.shape()) else {
        panic!("weights are [H, T, S], values [S, Hkv, D]")
    };
    // ggml's matrix is v transposed: a row for each value of a head, a column for each cell.
    let add = match DotOrder::of(DType::F32, tokens, head_dim, CELLS) {
        DotOrder::Batch => add_in_one_register,
        DotOrder::Row => add_in_four_registers,
    };
    // Zero times infinity or NaN is NaN, so keys with zero weight may be skipped only if all values are finite.
    let are_numbers = OnceLock::new();
    let are_numbers = || *are_numbers.get_or_init(|| v.data().iter().all(|value| value.is_finite()));
    let mut data = vec![0.0; tokens * heads * head_dim];
    parallel::chunks(&mut data, head_dim, keys * head_dim / parallel::PRODUCTS, |at, out| {
        let (token, head) = (at / heads, at % heads);
        let weights = &weights.row(head)[token * keys..][..keys];
        let seen = seen(weights, keys);
        let seen = if seen == keys || are_numbers() { seen } else { keys };
        add(&weights[..seen], &v.data()[head * key_heads / heads * head_dim..], v.row_len(), out);
    });
    Tensor::new(&[tokens, heads * head_dim], data)
}

/// Computes `Σ weights[key] · values[key]`: keys are distributed over lanes, whose sums are added at the end. The rows of
/// `values` are `stride` apart and as long as `out`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn add_in_one_register(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
    add_in_lanes::<LANES>(|lane| lane, weights, values, stride, out);
}

/// Computes `Σ weights[key] · values[key]` with four registers in turn. The registers are added first, then the
/// lanes. The last four lanes are added in neighbouring pairs, so the middle two lanes are swapped.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn add_in_four_registers(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
    let place = |lane: usize| lane / 4 * 4 + [0, 2, 1, 3][lane % 4];
    add_in_lanes::<{ REGISTERS * LANES }>(place, weights, values, stride, out);
}
