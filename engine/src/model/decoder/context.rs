//! Data of a forward pass that all blocks with the same window share: numerics, rotations, mask, and attention.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::checkpoint::Point::*;
use crate::model::attention::Attention;
use crate::model::cache::LayerState;
use crate::model::decoder::DecoderConfig;
use crate::numerics::Numerics;
use crate::ops::attention::Mask;
use crate::ops::rope::RopeTable;
use crate::ops::scaling::Multiplier;
use crate::tap::Probe;
use crate::tensor::Tensor;

/// Data of a pass, shared by all blocks with the same window.
pub struct ForwardContext<'m> {
    /// Numerics.
    pub n: &'m dyn Numerics,
    /// Sizes and constants.
    pub c: &'m DecoderConfig,
    /// Rotations for the pass's positions; `None` for layers without RoPE.
    pub(crate) rope: Option<RopeTable>,
    /// Attention mask.
    pub(crate) mask: Mask,
    /// Keys and values that later layers of the same kind reuse, and the position of the first key.
    pub(super) shared: Mutex<Option<([Tensor; 2], usize)>>,
    /// Per-layer embeddings of the pass for all layers, `[T, L·P]`.
    pub(super) embeddings: Arc<OnceLock<Tensor>>,
    /// Slopes of ALiBi, `[H]`, for models with it.
    pub(crate) slopes: Option<&'m [f32]>,
}

impl ForwardContext<'_> {
    /// Computes attention from rotated queries and keys to merged heads: `[T, H, D]`, `[T, Hkv, D]` twice, to `[T,
    /// H·D]`.
    pub fn attend(&self, q: &Tensor, k: Tensor, v: Tensor, t: &mut Probe, state: &mut LayerState) -> Tensor {
        self.attend_with_sinks(q, k, v, None, t, state)
    }

    /// Computes attention with a sink in each head, `[H]`, if there are any.
    pub(crate) fn attend_with_sinks(
        &self,
        q: &Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Option<&[f32]>,
        t: &mut Probe,
        state: &mut LayerState,
    ) -> Tensor {
        self.attention(sinks).attend(q, k, v, t, state.kv())
    }

    /// Computes attention like [`ForwardContext::attend`], and keeps the keys and values if later layers reuse them.
    pub(crate) fn attend_sharing(
        &self,
        q: &Tensor,
        k: Tensor,
        v: Tensor,
        are_shared: bool,
        t: &mut Probe,
        state: &mut LayerState,
    ) -> Tensor {
        let (attention, kv) = (self.attention(None), state.kv());
        let first = kv.first();
        let cached = attention.extended(k, v, t, kv);
        let context = attention.over(q, &cached, first, t);
        if are_shared {
            *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some((cached.clone(), first));
        }
        let [keys, values] = cached;
        kv.keep(keys, values, self.mask.window);
        context
    }

    /// Computes attention over the keys and values of the last earlier layer that shares them.
    ///
    /// # Panics
    /// If no such layer has run in this pass. This is a bug of the caller: see [`Model::runs_in_parts`].
    pub(crate) fn attend_shared(&self, q: &Tensor, t: &mut Probe) -> Tensor {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ([keys, values], first) = shared.expect("an earlier layer has keys and values");
        let cached = [t.tap(KCache, keys), t.tap(VCache, values)];
        self.attention(None).over(q, &cached, first, t)
    }

    /// Returns the embeddings of a layer, `[T, P]`.
    ///
    /// # Panics
    /// If the embeddings of the pass were not computed. This is a bug of the caller: see [`Model::runs_in_parts`].
    pub(crate) fn embedding_of(&self, layer: usize, width: usize) -> Tensor {
        let all = self.embeddings.get().expect("a pass begins with its embeddings");
        let row = all.row_len();
        let at = |flat: usize| (0, flat / width * row + layer * width + flat % width);
        self.n.rearranged(&[all], &[all.rows(), width], &at)
    }

    fn attention<'s>(&'s self, sinks: Option<&'s [f32]>) -> Attention<'s> {
        let (scale, cap) = (self.c.attn_scale, self.c.attn_cap);
        Attention { n: self.n, scale, cap, mask: self.mask, sinks, slopes: self.slopes }
    }

    /// Rotates queries or keys, `[T, heads, D]`, in layers that rotate.
    pub fn rotate(&self, x: Tensor) -> Tensor {
        match &self.rope {
            Some(table) => self.n.rotate(&x, table),
            None => x,
        }
    }

    /// Adds the output of half a block to the residual stream: `[T, d]` twice, to `[T, d]`.
    pub(crate) fn add(&self, x: &Tensor, branch: &Tensor) -> Tensor {
        match self.c.residual_scale {
            Some(factor) => self.n.add(x, &self.n.scale(branch, Multiplier::Number(factor))),
            None => self.n.add(x, branch),
        }
    }
}
