//! `llama.cpp-flash`: llama.cpp with flash attention, its default, on the CPU.
//!
//! Other operations are those of [`LlamaCpp`]. According to ggml's sources, keys and values are f16, regardless of
//! the type of the cache. In a pass of fewer than [`TILE`] tokens, queries are rounded to f16 as well, and values are summed key
//! by key in f16; in longer passes neither is rounded. A cache of blocks is not tiled: queries are quantised for the
//! products with keys, and values are summed in f32. Exponentials are divided by their sum at the end. With a cache
//! of 512 cells or more, a pass of one token is split over the threads and the partial results are added. This depends
//! on the number of threads and is not reproduced here.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;

use crate::numerics::delegate::delegate;
use crate::numerics::{CachedKind, KvType, LlamaCpp, Numerics, ggml};
use crate::ops::activation::Activation;
use crate::ops::attention::{AttentionScale, Mask, per_head_and_token};
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction};
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::scaling::Multiplier;
use crate::parallel;
use crate::quant::{self, CACHES, DotOrder};
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Tile size, and minimum number of tokens for a pass that is computed in tiles.
pub(crate) const TILE: usize = 64;

/// Smallest number of values that are transformed together before they are stored.
const HADAMARD: usize = 64;

/// Computes as llama.cpp does with flash attention.
#[derive(Clone, Copy, Debug)]
pub struct LlamaCppFlash {
    /// Numerics of all other operations. The cache is f16: f32 values are rounded before attention reads them.
    inner: LlamaCpp,
    /// Block type of the cache. Queries are quantised for the products with keys, and values are summed in f32.
    blocks: Option<DType>,
    /// True if heads are transformed (Hadamard) before they are stored in a cache of blocks.
    is_rotated: bool,
}

impl LlamaCppFlash {
    /// The numerics for a floating-point cache.
    pub const NEW: Self = Self { inner: LlamaCpp { kv: KvType::F16 }, blocks: None, is_rotated: false };

    /// Returns the numerics for a cache of this type. `None` if its arithmetic is not known.
    pub fn of(cache: DType) -> Option<Self> {
        match KvType::of(cache) {
            Some(_) => Some(Self::NEW),
            None => CACHES.contains(&cache).then_some(Self { blocks: Some(cache), ..Self::NEW }),
        }
    }

    /// Sets whether heads of a multiple of 64 values are transformed (Hadamard) before they are stored in a cache of
    /// blocks, as newer versions do.
    pub fn rotated(self, is_rotated: bool) -> Self {
        Self { is_rotated, ..self }
    }

    fn way(&self, tokens: usize) -> SummationPlan {
        match self.blocks {
            Some(_) => SummationPlan { together: 1, is_half: false },
            None if tokens < TILE => SummationPlan { together: 1, is_half: true },
            None => SummationPlan { together: TILE, is_half: false },
        }
    }
}

/// Order in which a pass sums over keys.
#[derive(Clone, Copy)]
struct SummationPlan {
    /// Number of keys that are processed before the running maximum is updated.
    together: usize,
    /// True if sums over values are rounded to `f16`.
    is_half: bool,
}

impl Numerics for LlamaCppFlash {
    fn name(&self) -> &'static str {
        "llama.cpp-flash"
    }

    fn cache_type(&self) -> DType {
        self.blocks.unwrap_or(self.inner.cache_type())
    }

    fn cache_transform(&self, of: CachedKind, head_dim: usize) -> Option<usize> {
        let is_transformed = self.is_rotated && self.blocks.is_some() && head_dim.is_multiple_of(HADAMARD);
        is_transformed.then_some(match of {
            CachedKind::Keys => 1 << head_dim.trailing_zeros(),
            CachedKind::Values => HADAMARD,
        })
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        let Some(blocks) = self.blocks else { return self.inner.to_cache(x) };
        let head_dim = x.shape()[2];
        let rows = quant::quantised_rows(blocks, x.data(), head_dim);
        let mut data = vec![0.0; x.data().len()];
        let decode = |(row, out): (&Vec<u8>, &mut [f32])| quant::decode_row(blocks, row, out);
        rows.iter().zip(data.chunks_mut(head_dim)).for_each(decode);
        Tensor::new(x.shape(), data)
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        match scale {
            AttentionScale::Products(factor) if self.blocks.is_some() => {
                ggml::scores(q, k, self.cache_type(), DotOrder::Row, factor)
            }
            AttentionScale::Products(factor) if q.rows() < TILE => {
                ggml::scores(&self.inner.as_cached(q), k, self.cache_type(), DotOrder::Row, factor)
            }
            AttentionScale::Products(factor) => ggml::scores_in_order(q, k, factor),
            AttentionScale::Queries(factor) | AttentionScale::RoundedQueries(factor) => {
                self.scores(&self.scale(q, Multiplier::Element(factor)), k, AttentionScale::Products(1.0))
            }
        }
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        let (&[heads, tokens, keys], &[_, key_heads, head_dim]) = (weights.shape(), v.shape()) else {
            panic!("weights are [H, T, S], values [S, Hkv, D]")
        };
        let way = self.way(tokens);
        let mut data = vec![0.0; tokens * heads * head_dim];
        parallel::chunks(&mut data, head_dim, keys * head_dim, |at, out| {
            let (token, head) = (at / heads, at % heads);
            let weights = &weights.row(head)[token * keys..][..keys];
            let values = &v.data()[head * key_heads / heads * head_dim..];
            add_key_by_key(weights, values, v.row_len(), way, out);
        });
        Tensor::new(&[tokens, heads * head_dim], data)
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        let &[heads, tokens, keys] = scores.shape() else { panic!("scores are [H, T, S]") };
        let way = self.way(tokens);
        per_head_and_token(heads, tokens, keys, |head, token, out| {
            softmax_row(&scores.row(head)[token * keys..][..keys], mask.visible(token, keys), way, out);
        })
    }

    fn sums_of_values(&self, tokens: usize) -> DType {
        if self.way(tokens).is_half { DType::F16 } else { DType::F32 }
    }

    delegate!(
        inner: weight_types, native_types, embed, scale, rms_norm, layer_norm, linear, linear_of_pass,
        adds_rows_alike, affine, bit_linear, rope_table, rotate, activation, gated,
        likelihoods, router_logits, scores_of_logits, expert_scores, choose, expert_weights, linear_of_expert, routed, mix, shared_weights,
        add_shared, row_scaled, tempered, mix_streams, match_magnitude, mean_of_streams, sparse_gate, short_convolution, l2_norm, decay, delta_rule, silu_gated, gated_by_part, step_sizes, recurrence, recurs_alike, gated_norm, add, add_halves, probabilities
    );
}

/// Computes attention weights: exp(score - maximum) / sum. Flash attention does not compute them explicitly. The sum
/// grows by `way.together` keys at a time and is rescaled when the running maximum changes. Hidden keys keep weight 0.
fn softmax_row(row: &[f32], visible: Range<usize>, way: SummationPlan, out: &mut [f32]) {
    let (mut largest, mut sum) = (f32::NEG_INFINITY, 0.0f32);
    let first = visible.start / way.together * way.together;
    for start in (first..visible.end).step_by(way.together) {
        let tile = start.max(visible.start)..visible.end.min(start + way.together);
        let highest = row[tile.clone()].iter().copied().fold(largest, f32::max);
        if highest > largest {
            sum *= (largest - highest).exp();
            largest = highest;
        }
        sum = match way.together {
            1 => tile.fold(sum, |sum, key| sum + (row[key] - largest).exp()),
            _ => (f64::from(sum) + ggml::sum_of_exponentials(row, tile, start, largest)) as f32,
        };
    }
    let inverse = 1.0 / sum;
    for (out, score) in out[visible.clone()].iter_mut().zip(&row[visible]) {
        *out = (score - largest).exp() * inverse;
    }
}

/// Computes `Σ weights[key] · values[key]`, rounded to f16 after each key if `way.is_half`. The rows of `values`
/// are `stride` apart. The kernel multiplies each value by exp(score − largest score so far), which is the
/// key's weight divided by the largest weight so far.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma+f16c"))]
fn add_key_by_key(weights: &[f32], values: &[f32], stride: usize, way: SummationPlan, out: &mut [f32]) {
    let mut half = vec![f16::ZERO; out.len()];
    let mut round = |sums: &mut [f32]| {
        if way.is_half {
            half.convert_from_f32_slice(sums);
            half.convert_to_f32_slice(sums);
        }
    };
    let mut largest = 0.0f32;
    for (first, tile) in (0..).step_by(way.together).zip(weights.chunks(way.together)) {
        let highest = tile.iter().fold(largest, |most, weight| most.max(weight.abs()));
        if highest > largest {
            out.iter_mut().for_each(|sum| *sum *= largest / highest);
            round(out);
            largest = highest;
        }
        for (key, weight) in (first..).zip(tile).filter(|(_, weight)| **weight != 0.0) {
            let (exponential, values) = (weight / largest, &values[key * stride..][..out.len()]);
            out.iter_mut().zip(values).for_each(|(sum, value)| *sum = value.mul_add(exponential, *sum));
            round(out);
        }
    }
    out.iter_mut().for_each(|sum| *sum *= largest);
}
