//! `llama.cpp-flash`: llama.cpp with flash attention, its default, on a CPU.
//!
//! All else is [`LlamaCpp`]'s. Read in ggml's sources: in a pass of fewer than [`TILE`] tokens queries are rounded to the
//! type of the cache, and values are added up key by key in that type; in one of more nothing of the two is rounded.
//! Exponentials are divided by their sum at the end. Of a cache of 512 cells or more each thread takes a part in a pass of one
//! token, and parts are added: that depends on the number of threads, and is not done here.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;
use rayon::prelude::*;

use crate::numerics::forward::forward;
use crate::numerics::{KvType, LlamaCpp, Numerics, ggml};
use crate::ops::attention::{Mask, Scale};
use crate::ops::ffn::Activation;
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::quant::Kernel;
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// From so many tokens on, a pass is computed in tiles of as many.
pub const TILE: usize = 64;

/// Computes as llama.cpp does with flash attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct LlamaCppFlash {
    /// What computes the rest, and has the cache.
    pub inner: LlamaCpp,
}

impl LlamaCppFlash {
    /// With a cache of that type.
    pub const fn with(kv: KvType) -> Self {
        Self { inner: LlamaCpp { kv } }
    }
}

impl Numerics for LlamaCppFlash {
    fn name(&self) -> &'static str {
        "llama.cpp-flash"
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: Scale) -> Tensor {
        match scale {
            Scale::Products(factor) if q.rows() < TILE => {
                ggml::scores(&self.inner.as_cached(q), k, self.cache_type(), Kernel::Row, factor)
            }
            Scale::Products(factor) => ggml::scores_in_order(q, k, factor),
            Scale::Queries(factor) => self.scores(&self.scale(q, factor), k, Scale::Products(1.0)),
        }
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        let (&[heads, tokens, keys], &[_, key_heads, head_dim]) = (weights.shape(), v.shape()) else {
            panic!("weights are [H, T, S], values [S, Hkv, D]")
        };
        let is_half = self.inner.kv == KvType::F16 && tokens < TILE;
        let mut data = vec![0.0; tokens * heads * head_dim];
        data.par_chunks_mut(head_dim).enumerate().for_each(|(at, out)| {
            let (token, head) = (at / heads, at % heads);
            let weights = &weights.row(head)[token * keys..][..keys];
            let values = &v.data()[head * key_heads / heads * head_dim..];
            add_key_by_key(weights, values, v.row_len(), is_half, out);
        });
        Tensor::new(&[tokens, heads * head_dim], data)
    }

    fn sums_of_values(&self, tokens: usize) -> DType {
        if tokens < TILE { self.cache_type() } else { DType::F32 }
    }

    forward!(
        inner: weight_types, native_types, embed, scale, rms_norm, layer_norm, linear, linear_of_pass,
        adds_rows_alike, affine, bit_linear, rope_table, rotate, cache_type, to_cache, softmax, activation, gated,
        add, probabilities
    );
}

/// `Σ weights[key] · values[key]`, rounded to f16 after each key where the sum is of that; `values` are `stride` apart. A weight
/// over the largest so far is the exponential that meets the values, and the largest of all is one over the sum of these.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma+f16c"))]
fn add_key_by_key(weights: &[f32], values: &[f32], stride: usize, is_half: bool, out: &mut [f32]) {
    let mut half = vec![f16::ZERO; out.len()];
    let mut round = |sums: &mut [f32]| {
        if is_half {
            half.convert_from_f32_slice(sums);
            half.convert_to_f32_slice(sums);
        }
    };
    let mut largest = 0.0f32;
    let seen = weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0);
    for (key, &weight) in seen {
        if weight > largest {
            let shrunk = largest / weight;
            out.iter_mut().for_each(|sum| *sum *= shrunk);
            round(out);
            largest = weight;
        }
        let exponential = weight / largest;
        let values = &values[key * stride..][..out.len()];
        out.iter_mut().zip(values).for_each(|(sum, value)| *sum = value.mul_add(exponential, *sum));
        round(out);
    }
    out.iter_mut().for_each(|sum| *sum *= largest);
}
