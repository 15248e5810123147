//! llama.cpp's arithmetic with some operations replaced.

use std::ops::Range;

use xcheck::numerics::Numerics;
use xcheck::ops::attention::{Mask, Scale};
use xcheck::ops::ffn::Activation;
use xcheck::ops::norm::{LayerNorm, RmsNorm};
use xcheck::ops::rope::{Rope, RopeTable};
use xcheck::tensor::Tensor;
use xcheck::weight::{DType, Matrix};

use super::LLAMA_CPP_F32;

macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// llama.cpp's arithmetic with some operations replaced.
        #[derive(Default)]
        pub struct Faulty {
            $(pub $name: Option<fn($($type),*) -> $result>,)*
        }

        impl Numerics for Faulty {
            fn name(&self) -> &'static str {
                "faulty"
            }

            fn weight_types(&self) -> &'static [DType] {
                LLAMA_CPP_F32.weight_types()
            }

            fn cache_type(&self) -> DType {
                LLAMA_CPP_F32.cache_type()
            }

            $(fn $name(&self, $($argument: $type),*) -> $result {
                match self.$name {
                    Some(fault) => fault($($argument),*),
                    None => LLAMA_CPP_F32.$name($($argument),*),
                }
            })*
        }
    };
}

operations! {
    embed(table: &Matrix, tokens: &[u32]) -> Tensor;
    scale(x: &Tensor, factor: f32) -> Tensor;
    rms_norm(x: &Tensor, norm: &RmsNorm) -> Tensor;
    layer_norm(x: &Tensor, norm: &LayerNorm) -> Tensor;
    linear(x: &Tensor, w: &Matrix) -> Tensor;
    affine(x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor;
    rope_table(rope: &Rope, positions: Range<usize>) -> RopeTable;
    rotate(x: &Tensor, table: &RopeTable) -> Tensor;
    to_cache(x: Tensor) -> Tensor;
    scores(q: &Tensor, k: &Tensor, scale: Scale) -> Tensor;
    softmax(scores: &Tensor, mask: Mask) -> Tensor;
    context(weights: &Tensor, v: &Tensor) -> Tensor;
    activation(x: &Tensor, activation: Activation) -> Tensor;
    gated(gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor;
    add(a: &Tensor, b: &Tensor) -> Tensor;
    probabilities(logits: &Tensor, temperature: f32) -> Tensor;
}
