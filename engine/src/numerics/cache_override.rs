//! Numerics with another type of KV cache.

use std::ops::Range;

use crate::numerics::Numerics;
use crate::numerics::delegate::delegate;
use crate::ops::activation::{Activation, ClampedGlu};
use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction};
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::scaling::Multiplier;
use crate::quant::{ActivationCodeType, ActivationCodes, CodeGroup, ScaleType, round_float};
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Integers of an int8 cache: each head of a token has a scale.
pub(crate) const CACHE_CODES: ActivationCodes = ActivationCodes {
    group: CodeGroup::Token,
    codes: ActivationCodeType::Int8,
    scale: ScaleType::F32,
    quotients: ScaleType::F32,
    values: None,
    largest: 127.0,
    asymmetric: false,
    whole_for: 0,
    outliers: 0.0,
    local: None,
};

/// Wraps numerics and rounds keys and values to `kv` in the cache. All other attention arithmetic is unchanged.
pub struct CacheOverride {
    inner: Box<dyn Numerics>,
    kv: DType,
    noise: f64,
}

impl CacheOverride {
    /// Wraps `inner` with a cache of type `kv`. Returns `inner` itself if it already has this cache, or if `kv` is more
    /// precise than the computed values. `None` if `kv` is neither floating-point nor int8.
    pub fn over(inner: Box<dyn Numerics>, kv: DType) -> Option<Box<dyn Numerics>> {
        match kv {
            _ if inner.cache_type() == kv || kv == DType::F64 => Some(inner),
            DType::F32 | DType::F16 | DType::BF16 | DType::F8_E4M3 | DType::F8_E5M2 | DType::I8 => {
                Some(Box::new(Self { inner, kv, noise: 0.0 }))
            }
            _ => None,
        }
    }

    /// Wraps `inner` for comparison with an engine whose 8-bit cache has unknown scales. Keys and values stay
    /// unrounded, and perturbed runs inject errors of such a cache. `None` for a cache of another type.
    pub fn of_unknown_scale(inner: Box<dyn Numerics>, kv: DType) -> Option<Box<dyn Numerics>> {
        let noise = match kv {
            DType::F8_E4M3 => 1.0 / 16.0,
            DType::F8_E5M2 => 1.0 / 8.0,
            DType::I8 => 1.0 / 64.0,
            _ => return None,
        };
        let kv = inner.cache_type();
        Some(Box::new(Self { inner, kv, noise }))
    }
}

impl Numerics for CacheOverride {
    fn cache_type(&self) -> DType {
        self.kv
    }

    fn cache_noise(&self) -> f64 {
        self.noise
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        let x = self.inner.to_cache(x);
        if self.kv != DType::I8 {
            return x.map(|value| round_float(self.kv, value));
        }
        let mut data = x.data().to_vec();
        CACHE_CODES.round(&mut data, x.shape().last().copied().unwrap_or(1));
        Tensor::new(x.shape(), data)
    }

    delegate!(
        inner: cache_transform, name, weight_types, native_types, activation_type, activation_codes, embed, scale, rms_norm, layer_norm,
        linear, linear_of_pass, adds_rows_alike, affine, bit_linear, rope_table, rotate, scores, softmax, softmax_with_sinks, add_alibi, clamped_glu, sums_of_values,
        context, activation, gated, likelihoods, router_logits, scores_of_logits, expert_scores, choose, expert_weights, linear_of_expert, routed, mix, shared_weights,
        add_shared, row_scaled, tempered, mix_streams, match_magnitude, mean_of_streams, sparse_gate, short_convolution, l2_norm, decay, delta_rule, silu_gated, gated_by_part, step_sizes, recurrence, recurs_alike, gated_norm, add, add_halves, probabilities
    );
}
