//! Multi-head latent attention (MLA; DeepSeek, 2024): keys and values of all heads are projections of one latent vector
//! per token, which the cache keeps with the rotated part of the keys.
//!
//! Hugging Face files store a matrix that expands the latents to keys and values of each head. GGUF files split
//! this matrix, and llama.cpp absorbs it: queries are projected to latents, and the weighted sum of latents is
//! expanded to values.

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::KvLayer;
use crate::model::decoder::columns::columns;
use crate::model::decoder::{DecoderConfig, ForwardContext, LayerWeights, Projection};
use crate::numerics::Numerics;
use crate::ops::norm::{Gain, RmsNorm};
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LatentSizes {
    /// Width of compressed queries; `None` if queries are not compressed.
    pub(crate) query_rank: Option<usize>,
    /// Width of the latents, R.
    pub(crate) rank: usize,
    /// Number of values of a query or key head that do not rotate, N.
    pub(crate) plain: usize,
    /// Number of values of a query or key head that rotate, P. All heads share the rotated values of the key.
    pub(crate) rotated: usize,
    /// Values of a value head, Dv.
    pub(crate) value: usize,
    /// Epsilon of the norms of compressed queries and latents.
    pub(crate) norm_eps: f32,
    /// True if the expanding matrix is absorbed, as llama.cpp does with GGUF files.
    pub(crate) is_absorbed: bool,
}

/// Weights of latent attention.
#[derive(Clone, Debug)]
pub(crate) struct LatentAttention {
    /// Projection of queries, or of compressed queries.
    pub(crate) q: Projection,
    /// Norm and second projection of compressed queries, if queries are compressed.
    pub(crate) q_low: Option<(RmsNorm, Matrix)>,
    /// `[R + P, d]`
    pub(crate) kv_a: Projection,
    /// `[R]`
    pub(crate) kv_norm: RmsNorm,
    /// Matrices between latents and heads.
    pub(crate) expansion: LatentExpansion,
    /// `[d, H·Dv]`
    pub(crate) output: Projection,
}

/// Matrices between latents and heads.
#[derive(Clone, Debug)]
pub(crate) enum LatentExpansion {
    /// `[H · (N + Dv), R]`: keys and values of each head from latents.
    Expanded(Matrix),
    /// `[R, N]` and `[Dv, R]` of each head: latents from queries, and values from sums of latents.
    Absorbed([Vec<Matrix>; 2]),
}

impl LatentAttention {
    /// Loads the weights of a layer.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub(crate) fn load(c: &DecoderConfig, sizes: LatentSizes, w: &mut LayerWeights) -> Result<Self> {
        let LatentSizes { rank, plain, rotated, value, .. } = sizes;
        let (d, heads, has_bias) = (c.hidden_size, c.n_heads, c.biases.qkv);
        let q_width = heads * (plain + rotated);
        let norm = |weight| RmsNorm { weight, eps: sizes.norm_eps, gain: Gain::Weight, groups: 1 };
        let (q, q_low) = match sizes.query_rank {
            None => (w.projection("attn_q", false, q_width, d)?, None),
            Some(low) => {
                let second = (norm(w.vector("attn_q_a_norm", low)?), w.matrix("attn_q_b", q_width, low)?);
                (w.projection("attn_q_a", has_bias, low, d)?, Some(second))
            }
        };
        let expansion = match sizes.is_absorbed {
            false => LatentExpansion::Expanded(w.matrix("attn_kv_b", heads * (plain + value), rank)?),
            true => LatentExpansion::Absorbed([
                w.of_experts("attn_k_b", heads, rank, plain)?,
                w.of_experts("attn_v_b", heads, value, rank)?,
            ]),
        };
        Ok(Self {
            q,
            q_low,
            kv_a: w.projection("attn_kv_a_mqa", has_bias, rank + rotated, d)?,
            kv_norm: norm(w.vector("attn_kv_a_norm", rank)?),
            expansion,
            output: w.projection("attn_output", c.biases.output, d, heads * value)?,
        })
    }

    /// Returns the matrices, with names for messages.
    pub(crate) fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let mut all = vec![("attn_q", &self.q.weight), ("attn_kv_a_mqa", &self.kv_a.weight)];
        all.extend(self.q_low.iter().map(|(_, matrix)| ("attn_q_b", matrix)));
        match &self.expansion {
            LatentExpansion::Expanded(matrix) => all.push(("attn_kv_b", matrix)),
            LatentExpansion::Absorbed([k, v]) => {
                all.extend(k.iter().map(|matrix| ("attn_k_b", matrix)));
                all.extend(v.iter().map(|matrix| ("attn_v_b", matrix)));
            }
        }
        all.push(("attn_output", &self.output.weight));
        all
    }

    /// Computes attention of normed tokens, `[T, d]`, with its output projection.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        sizes: LatentSizes,
        p: &ForwardContext,
        t: &mut Probe,
        kv: &mut KvLayer,
    ) -> Tensor {
        let (n, LatentSizes { rank, plain, rotated, .. }) = (p.n, sizes);
        let tokens = x.rows();
        let q = self.queries(x, sizes, p, t);
        let latent = t.tap(KvLatent, self.kv_a.of(n, x));
        let normed = t.tap(KvLatentNorm, n.rms_norm(&columns(n, &latent, 0, rank), &self.kv_norm));
        let k_rotated = p.rotate(columns(n, &latent, rank, rotated).reshaped(&[tokens, 1, rotated]));
        let normed = normed.reshaped(&[tokens, 1, rank]);
        let k = t.tap(KRope, joined(n, &normed, &k_rotated));
        let keys = t.tap(KCache, kv.take_keys(&n.to_cache(k)));
        let values = t.tap(VCache, kv.take_values(&n.to_cache(normed)));
        let expanded = match &self.expansion {
            LatentExpansion::Absorbed(_) => None,
            LatentExpansion::Expanded(w) => {
                let seen = keys.rows();
                let both = n.linear(&values.clone().reshaped(&[seen, rank]), w);
                let both = both.reshaped(&[seen, p.c.n_heads, plain + sizes.value]);
                let shared = columns(n, &keys, rank, rotated);
                let k = t.tap(KExpanded, joined(n, &columns(n, &both, 0, plain), &shared));
                Some((k, t.tap(VExpanded, columns(n, &both, plain, sizes.value))))
            }
        };
        let (k, v) = expanded.as_ref().map_or((&keys, &values), |(k, v)| (k, v));
        let scores = t.tap(AttnScores, n.scores(&q, k, p.c.attn_scale));
        let mask = p.mask.without(kv.first());
        let weights = t.tap(AttnWeights, n.softmax(&scores, mask));
        let context = self.context(n.context(&weights, v), n, t);
        kv.keep(keys, values, p.mask.window);
        t.tap(AttnOut, self.output.of(n, &context))
    }

    /// Computes rotated queries: `[T, d]` to `[T, H, N + P]`, or `[T, H, R + P]` if the expanding matrix is absorbed.
    fn queries(&self, x: &Tensor, sizes: LatentSizes, p: &ForwardContext, t: &mut Probe) -> Tensor {
        let (n, heads, LatentSizes { plain, rotated, .. }) = (p.n, p.c.n_heads, sizes);
        let q = match &self.q_low {
            None => self.q.of(n, x),
            Some((norm, w)) => {
                let low = t.tap(QLatent, self.q.of(n, x));
                n.linear(&t.tap(QLatentNorm, n.rms_norm(&low, norm)), w)
            }
        };
        let q = t.tap(Q, q.reshaped(&[x.rows(), heads, plain + rotated]));
        let mut q_plain = columns(n, &q, 0, plain);
        let q_rotated = p.rotate(columns(n, &q, plain, rotated));
        if let LatentExpansion::Absorbed([w, _]) = &self.expansion {
            let each = (0..x.rows()).flat_map(|_| (0..heads).map(|head| head as f32)).collect();
            q_plain = n.routed(&q_plain, w, &Tensor::new(&[x.rows(), heads], each));
        }
        t.tap(QRope, joined(n, &q_plain, &q_rotated))
    }

    /// Returns the merged value heads: `[T, H·Dv]`. Sums of latents are expanded first.
    fn context(&self, sums: Tensor, n: &dyn Numerics, t: &mut Probe) -> Tensor {
        let LatentExpansion::Absorbed([_, w]) = &self.expansion else { return t.tap(AttnContext, sums) };
        let (tokens, heads, rank) = (sums.rows(), w.len(), w[0].cols);
        let sums = t.tap(AttnLatent, sums.reshaped(&[tokens, heads, rank]));
        let of_head = |(head, w): (usize, &Matrix)| {
            let from = |flat: usize| (0, (flat / rank * heads + head) * rank + flat % rank);
            n.linear(&n.rearranged(&[&sums], &[tokens, rank], &from), w)
        };
        let all: Vec<Tensor> = w.iter().enumerate().map(of_head).collect();
        let all: Vec<&Tensor> = all.iter().collect();
        let width = w[0].rows;
        let from = |flat: usize| {
            let (token, column) = (flat / (heads * width), flat % (heads * width));
            (column / width, token * width + column % width)
        };
        t.tap(AttnContext, n.rearranged(&all, &[tokens, heads * width], &from))
    }
}

/// Joins the rows of two tensors: `[T, H, a]` and `[T, H or 1, b]` to `[T, H, a + b]`.
fn joined(n: &dyn Numerics, one: &Tensor, other: &Tensor) -> Tensor {
    let (&[tokens, heads, a], &[_, shared, b]) = (one.shape(), other.shape()) else {
        panic!("queries and keys are [T, H, D]")
    };
    let from = |flat: usize| {
        let (row, column) = (flat / (a + b), flat % (a + b));
        match column.checked_sub(a) {
            None => (0, row * a + column),
            Some(column) => {
                let row = row / heads * shared + if shared == heads { row % heads } else { 0 };
                (1, row * b + column)
            }
        }
    };
    n.rearranged(&[one, other], &[tokens, heads, a + b], &from)
}
