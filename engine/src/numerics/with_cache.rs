//! Numerics with a KV cache of another type than their own.

use std::ops::Range;

use half::{bf16, f16};

use crate::numerics::Numerics;
use crate::numerics::forward::forward;
use crate::ops::attention::{Mask, Scale};
use crate::ops::experts::Routing;
use crate::ops::ffn::Activation;
use crate::ops::multiplier::Multiplier;
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Other numerics, but keys and values are rounded to `kv` when the cache takes them. What attention computes with them
/// stays as it was.
pub struct WithCache {
    inner: Box<dyn Numerics>,
    kv: DType,
}

impl WithCache {
    /// `inner` with a cache of that type: `inner` itself where it has one, or where the cache keeps more than is computed.
    /// `None` for a cache that is not of floats.
    pub fn over(inner: Box<dyn Numerics>, kv: DType) -> Option<Box<dyn Numerics>> {
        match kv {
            _ if inner.cache_type() == kv || kv == DType::F64 => Some(inner),
            DType::F32 | DType::F16 | DType::BF16 => Some(Box::new(Self { inner, kv })),
            _ => None,
        }
    }

    fn round(&self, value: f32) -> f32 {
        match self.kv {
            DType::F16 => f16::from_f32(value).to_f32(),
            DType::BF16 => bf16::from_f32(value).to_f32(),
            _ => value,
        }
    }
}

impl Numerics for WithCache {
    fn cache_type(&self) -> DType {
        self.kv
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        self.inner.to_cache(x).map(|value| self.round(value))
    }

    forward!(
        inner: name, weight_types, native_types, activation_type, embed, scale, rms_norm, layer_norm,
        linear, linear_of_pass, adds_rows_alike, affine, bit_linear, rope_table, rotate, scores, softmax, sums_of_values,
        context, activation, gated, likelihoods, choose, expert_weights, linear_of_expert, routed, mix, add,
        probabilities
    );
}
