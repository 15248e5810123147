//! Numerics with a KV cache of another type than their own.

use std::ops::Range;

use half::{bf16, f16};

use crate::numerics::Numerics;
use crate::ops::attention::{Mask, Scale};
use crate::ops::ffn::Activation;
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

macro_rules! as_they_are {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Numerics for WithCache {
            fn cache_type(&self) -> DType {
                self.kv
            }

            fn to_cache(&self, x: Tensor) -> Tensor {
                self.inner.to_cache(x).map(|value| self.round(value))
            }

            $(fn $name(&self, $($argument: $type),*) -> $result {
                self.inner.$name($($argument),*)
            })*
        }
    };
}

// Also what the trait has a default for: the inner numerics may have their own.
as_they_are! {
    name() -> &'static str;
    weight_types() -> &'static [DType];
    native_types() -> &'static [DType];
    activation_type() -> DType;
    embed(table: &Matrix, tokens: &[u32]) -> Tensor;
    scale(x: &Tensor, factor: f32) -> Tensor;
    rms_norm(x: &Tensor, norm: &RmsNorm) -> Tensor;
    layer_norm(x: &Tensor, norm: &LayerNorm) -> Tensor;
    linear(x: &Tensor, w: &Matrix) -> Tensor;
    linear_of_pass(x: &Tensor, w: &Matrix, tokens: usize) -> Tensor;
    adds_rows_alike(w: &Matrix, tokens: usize) -> bool;
    affine(x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor;
    bit_linear(x: &Tensor, w: &Matrix, factor: Option<Factor>) -> Tensor;
    rope_table(rope: &Rope, positions: Range<usize>) -> RopeTable;
    rotate(x: &Tensor, table: &RopeTable) -> Tensor;
    scores(q: &Tensor, k: &Tensor, scale: Scale) -> Tensor;
    softmax(scores: &Tensor, mask: Mask) -> Tensor;
    context(weights: &Tensor, v: &Tensor) -> Tensor;
    activation(x: &Tensor, activation: Activation) -> Tensor;
    gated(gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor;
    add(a: &Tensor, b: &Tensor) -> Tensor;
    probabilities(logits: &Tensor, temperature: f32) -> Tensor;
}
