//! Scaled dot-product attention, in its three steps.
//!
//! With grouped queries (Ainslie et al., 2023) query head `h` reads key-value head `h / (H / Hkv)`.

use std::ops::Range;

use rayon::prelude::*;

use crate::ops::linear::dot;
use crate::tensor::Tensor;

/// Which keys a query may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// Where the pass's first token stands among the keys: its position, unless the first keys were dropped.
    pub position: usize,
    /// How many keys a query sees at most, itself included; `None` for all before it.
    pub window: Option<usize>,
}

impl Mask {
    /// Every key for every query.
    pub const NONE: Self = Self { position: usize::MAX / 2, window: None };

    /// The keys of `keys` that token `token` of the pass sees: itself and those before it, as far as the window goes.
    pub fn visible(self, token: usize, keys: usize) -> Range<usize> {
        let end = self.position + token + 1;
        end.saturating_sub(self.window.unwrap_or(end)).min(keys)..end.min(keys)
    }
}

/// What q·k is multiplied with, and where an architecture's authors do it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// The products: `(q·k) · scale`.
    Products(f32),
    /// The queries, before they meet the keys: `(q · scale)·k`.
    Queries(f32),
}

impl Scale {
    /// The factor.
    pub fn factor(self) -> f32 {
        match self {
            Scale::Products(factor) | Scale::Queries(factor) => factor,
        }
    }
}

/// `scale · q·k` for every head, query and key: `[T, H, D]`, `[S, Hkv, D]` to `[H, T, S]`.
pub fn scores(q: &Tensor, k: &Tensor, scale: f32) -> Tensor {
    scores_by(q, k, |query, key| dot(query, key) * scale)
}

/// `score(query, key)` for every head, query and key: `[T, H, D]`, `[S, Hkv, D]` to `[H, T, S]`.
pub fn scores_by(q: &Tensor, k: &Tensor, score: impl Fn(&[f32], &[f32]) -> f32 + Sync) -> Tensor {
    let (tokens, heads, keys) = (q.shape()[0], q.shape()[1], k.shape()[0]);
    let group = heads / k.shape()[1];
    per_head_and_token(heads, tokens, keys, |head, token, out| {
        let query = head_of(q, token, head);
        for (key, out) in out.iter_mut().enumerate() {
            *out = score(query, head_of(k, key, head / group));
        }
    })
}

/// Softmax of each row of `scores` (`[H, T, S]`) over the keys its token may see; the others get 0.
pub fn softmax(scores: &Tensor, mask: Mask) -> Tensor {
    softmax_by(scores, mask, softmax_row)
}

/// The same with another softmax of a row.
pub fn softmax_by(scores: &Tensor, mask: Mask, of_row: impl Fn(&[f32], &mut [f32]) + Sync) -> Tensor {
    let &[heads, tokens, keys] = scores.shape() else { panic!("scores are [H, T, S]") };
    per_head_and_token(heads, tokens, keys, |head, token, out| {
        let row = &scores.row(head)[token * keys..][..keys];
        let visible = mask.visible(token, keys);
        of_row(&row[visible.clone()], &mut out[visible]);
    })
}

/// Softmax of one row: exponentials in `f32`, summed in `f64`.
pub fn softmax_row(row: &[f32], out: &mut [f32]) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f64;
    for (out, &value) in out.iter_mut().zip(row) {
        *out = (value - max).exp();
        sum += f64::from(*out);
    }
    let scale = (1.0 / sum) as f32;
    out.iter_mut().for_each(|value| *value *= scale);
}

/// `weights · v`, heads merged: `[H, T, S]`, `[S, Hkv, D]` to `[T, H·D]`.
pub fn context(weights: &Tensor, v: &Tensor) -> Tensor {
    let &[heads, tokens, keys] = weights.shape() else { panic!("weights are [H, T, S]") };
    let (group, head_dim) = (heads / v.shape()[1], v.shape()[2]);
    Tensor::from_rows(tokens, heads * head_dim, |token, out| {
        for (head, out) in out.chunks_mut(head_dim).enumerate() {
            let weights = &weights.row(head)[token * keys..][..keys];
            for (key, &weight) in weights.iter().enumerate() {
                let value = head_of(v, key, head / group);
                out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
            }
        }
    })
}

/// One head of one token (or key) of `[T, H, D]`.
pub fn head_of(x: &Tensor, token: usize, head: usize) -> &[f32] {
    let head_dim = x.shape()[2];
    &x.row(token)[head * head_dim..][..head_dim]
}

/// `[H, T, S]`, each row of keys filled by `fill(head, token, row)`, in parallel.
pub fn per_head_and_token(
    heads: usize,
    tokens: usize,
    keys: usize,
    fill: impl Fn(usize, usize, &mut [f32]) + Sync,
) -> Tensor {
    let mut data = vec![0.0; heads * tokens * keys];
    let rows = data.par_chunks_mut(keys).enumerate();
    rows.for_each(|(row, out)| fill(row / tokens, row % tokens, out));
    Tensor::new(&[heads, tokens, keys], data)
}
