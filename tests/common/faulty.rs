//! Faults to plant: llama.cpp's arithmetic with some operations replaced, a value changed at one place.

use std::ops::Range;

use xcheck::checkpoint::Site;
use xcheck::numerics::Numerics;
use xcheck::ops::activation::Activation;
use xcheck::ops::attention::{AttentionScale, Mask};
use xcheck::ops::experts::ExpertRouting;
use xcheck::ops::norm::{LayerNorm, RmsNorm};
use xcheck::ops::rope::{Rope, RopeTable};
use xcheck::ops::scaling::Multiplier;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::weight::{DType, Matrix};

use super::LLAMA_CPP_F32;

/// Changes the value at one place.
pub struct At<F: Fn(&mut [f32])>(pub Site, pub F);

impl<F: Fn(&mut [f32])> Tap for At<F> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site != self.0 {
            return value;
        }
        let shape = value.shape().to_vec();
        let mut data = value.into_data();
        (self.1)(&mut data);
        Tensor::new(&shape, data)
    }
}

/// Whose arithmetic the faults are planted in.
pub struct Base(pub &'static dyn Numerics);

impl Default for Base {
    fn default() -> Self {
        Base(&LLAMA_CPP_F32)
    }
}

macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// A reference's arithmetic, llama.cpp's unless another is named, with some operations replaced.
        #[derive(Default)]
        pub struct Faulty {
            pub base: Base,
            $(pub $name: Option<fn($($type),*) -> $result>,)*
        }

        impl Numerics for Faulty {
            fn name(&self) -> &'static str {
                "faulty"
            }

            fn weight_types(&self) -> &'static [DType] {
                self.base.0.weight_types()
            }

            fn native_types(&self) -> &'static [DType] {
                self.base.0.native_types()
            }

            fn activation_type(&self) -> DType {
                self.base.0.activation_type()
            }

            fn cache_type(&self) -> DType {
                self.base.0.cache_type()
            }

            fn adds_rows_alike(&self, w: &Matrix, tokens: usize) -> bool {
                self.base.0.adds_rows_alike(w, tokens)
            }

            fn linear_of_pass(&self, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor {
                match (self.linear, bias) {
                    (Some(fault), None) => fault(x, w),
                    _ => self.base.0.linear_of_pass(x, w, bias, tokens),
                }
            }

            $(fn $name(&self, $($argument: $type),*) -> $result {
                match self.$name {
                    Some(fault) => fault($($argument),*),
                    None => self.base.0.$name($($argument),*),
                }
            })*
        }
    };
}

operations! {
    embed(table: &Matrix, tokens: &[u32]) -> Tensor;
    scale(x: &Tensor, by: Multiplier) -> Tensor;
    rms_norm(x: &Tensor, norm: &RmsNorm) -> Tensor;
    layer_norm(x: &Tensor, norm: &LayerNorm) -> Tensor;
    linear(x: &Tensor, w: &Matrix) -> Tensor;
    affine(x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor;
    rope_table(rope: &Rope, positions: Range<usize>) -> RopeTable;
    rotate(x: &Tensor, table: &RopeTable) -> Tensor;
    to_cache(x: Tensor) -> Tensor;
    scores(q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor;
    softmax(scores: &Tensor, mask: Mask) -> Tensor;
    context(weights: &Tensor, v: &Tensor) -> Tensor;
    activation(x: &Tensor, activation: Activation) -> Tensor;
    gated(gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor;
    likelihoods(logits: &Tensor) -> Tensor;
    choose(scores: &Tensor, routing: &ExpertRouting) -> Tensor;
    expert_weights(logits: &Tensor, chosen: &Tensor, routing: &ExpertRouting) -> Tensor;
    linear_of_expert(x: &Tensor, w: &Matrix) -> Tensor;
    routed(x: &Tensor, w: &[Matrix], chosen: &Tensor) -> Tensor;
    mix(outputs: &Tensor, weights: &Tensor, scores: &Tensor, is_whole: bool) -> Tensor;
    add(a: &Tensor, b: &Tensor) -> Tensor;
    probabilities(logits: &Tensor, temperature: f32) -> Tensor;
}
