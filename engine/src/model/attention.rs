//! Attention with its KV cache, shared by all architectures.

use std::sync::Arc;

use crate::checkpoint::Point::*;
use crate::model::cache::KvLayer;
use crate::numerics::{CachedKind, Numerics};
use crate::ops::attention::{AttentionScale, Mask};
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::DType;

/// Attention of a pass in one layer.
pub(crate) struct Attention<'m> {
    pub(crate) n: &'m dyn Numerics,
    /// Factor of q·k.
    pub(crate) scale: AttentionScale,
    /// Soft cap of the scores, if the model has one.
    pub(crate) cap: Option<f32>,
    /// Attention mask.
    pub(crate) mask: Mask,
    /// Sink of each head, if there are any: `[H]`.
    pub(crate) sinks: Option<&'m [f32]>,
    /// Slopes of ALiBi, if the model has it: `[H]`.
    pub(crate) slopes: Option<&'m [f32]>,
}

impl Attention<'_> {
    /// Computes attention from rotated queries and keys to merged heads: `[T, H, D]` and twice `[T, Hkv, D]` to
    /// `[T, H·D]`.
    pub(crate) fn attend(&self, q: &Tensor, k: Tensor, v: Tensor, t: &mut Probe, kv: &mut KvLayer) -> Tensor {
        let first = kv.first();
        let cached = self.extended(k, v, t, kv);
        let context = self.over(q, &cached, first, t);
        let [keys, values] = cached;
        kv.keep(keys, values, self.mask.window);
        context
    }

    /// Appends the keys and values of a pass to the cache, and returns all of them.
    pub(crate) fn extended(&self, k: Tensor, v: Tensor, t: &mut Probe, kv: &mut KvLayer) -> [Tensor; 2] {
        let n = self.n;
        let [of_keys, of_values] = [(CachedKind::Keys, &k), (CachedKind::Values, &v)]
            .map(|(kind, x)| n.cache_transform(kind, x.shape()[2]));
        let scales = kv.scales().clone();
        let stored = |x: Tensor, len, scales: &Option<Arc<[f32]>>| match scales {
            Some(scales) if n.cache_type() == DType::F8_E4M3 => n.to_scaled_cache(x, scales),
            _ => n.to_cache(transformed(n, x, len)),
        };
        let keys = t.tap(KCache, kv.take_keys(&stored(k, of_keys, &scales.keys)));
        [keys, t.tap(VCache, kv.take_values(&stored(v, of_values, &scales.values)))]
    }

    /// Computes attention over cached keys and values. `first` is the position of the first cached key.
    pub(crate) fn over(
        &self,
        q: &Tensor,
        [keys, values]: &[Tensor; 2],
        first: usize,
        t: &mut Probe,
    ) -> Tensor {
        let n = self.n;
        let [of_keys, of_values] = [(CachedKind::Keys, keys), (CachedKind::Values, values)]
            .map(|(kind, x)| n.cache_transform(kind, x.shape()[2]));
        let scores = match of_keys {
            Some(len) => n.scores(&n.hadamard(q, len), keys, self.scale),
            None => n.scores(q, keys, self.scale),
        };
        let scores = t.tap(AttnScores, capped(n, scores, self.cap));
        let mask = self.mask.without(first);
        let scores = match self.slopes {
            Some(slopes) => n.add_alibi(&scores, slopes, mask),
            None => scores,
        };
        let weights = match self.sinks {
            Some(sinks) => n.softmax_with_sinks(&scores, mask, sinks),
            None => n.softmax(&scores, mask),
        };
        let weights = t.tap(AttnWeights, weights);
        t.tap(AttnContext, transformed(n, n.context(&weights, values), of_values))
    }
}

/// Applies a Hadamard transform, if the cache stores transformed values.
fn transformed(n: &dyn Numerics, x: Tensor, len: Option<usize>) -> Tensor {
    match len {
        Some(len) => n.hadamard(&x, len),
        None => x,
    }
}

/// Applies the soft cap, if the model has one.
pub(crate) fn capped(n: &dyn Numerics, x: Tensor, cap: Option<f32>) -> Tensor {
    match cap {
        Some(cap) => n.soft_cap(&x, cap),
        None => x,
    }
}
