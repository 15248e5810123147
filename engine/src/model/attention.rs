//! Attention with its cache: the one part that every architecture has in common.

use crate::checkpoint::Point::*;
use crate::model::cache::KvLayer;
use crate::numerics::Numerics;
use crate::ops::attention::{Mask, Scale};
use crate::tap::Probe;
use crate::tensor::Tensor;

/// How the tokens of a pass attend in a layer.
pub struct Attention<'m> {
    /// How to compute.
    pub n: &'m dyn Numerics,
    /// What q·k is multiplied with.
    pub scale: Scale,
    /// What scores are softly capped by, if they are.
    pub cap: Option<f32>,
    /// Who sees whom.
    pub mask: Mask,
}

impl Attention<'_> {
    /// From queries and keys with positions to merged heads: `[T, H, D]`, `[T, Hkv, D]` twice, to `[T, H·D]`.
    pub fn attend(&self, q: &Tensor, k: Tensor, v: Tensor, t: &mut Probe, kv: &mut KvLayer) -> Tensor {
        let n = self.n;
        let keys = t.tap(KCache, kv.take_keys(&n.to_cache(k)));
        let values = t.tap(VCache, kv.take_values(&n.to_cache(v)));
        let scores = t.tap(AttnScores, capped(n, n.scores(q, &keys, self.scale), self.cap));
        let mask = Mask { position: self.mask.position - kv.first(), ..self.mask };
        let weights = t.tap(AttnWeights, n.softmax(&scores, mask));
        let context = t.tap(AttnContext, n.context(&weights, &values));
        kv.keep(keys, values, self.mask.window);
        context
    }
}

/// Softly capped values, where there is a cap.
pub fn capped(n: &dyn Numerics, x: Tensor, cap: Option<f32>) -> Tensor {
    match cap {
        Some(cap) => n.soft_cap(&x, cap),
        None => x,
    }
}
