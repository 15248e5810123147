//! Faults to plant: llama.cpp's arithmetic with one operation replaced, a value changed at one place.

use std::ops::Range;

use xcheck::checkpoint::Site;
use xcheck::numerics::Numerics;
use xcheck::ops::attention::Mask;
use xcheck::ops::rope::{Rope, RopeTable};
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

/// llama.cpp's arithmetic with one operation replaced.
#[derive(Default)]
pub struct Faulty {
    pub rope_table: Option<fn(&Rope, Range<usize>) -> RopeTable>,
    pub scores: Option<fn(&Tensor, &Tensor, f32) -> Tensor>,
    pub softmax: Option<fn(&Tensor, Mask) -> Tensor>,
}

impl Numerics for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn weight_types(&self) -> &'static [DType] {
        LLAMA_CPP_F32.weight_types()
    }

    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor {
        LLAMA_CPP_F32.embed(table, tokens)
    }

    fn rms_norm(&self, x: &Tensor, weight: &[f32], eps: f32) -> Tensor {
        LLAMA_CPP_F32.rms_norm(x, weight, eps)
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        LLAMA_CPP_F32.linear(x, w)
    }

    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable {
        match self.rope_table {
            Some(fault) => fault(rope, positions),
            None => LLAMA_CPP_F32.rope_table(rope, positions),
        }
    }

    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor {
        LLAMA_CPP_F32.rotate(x, table)
    }

    fn cache_type(&self) -> DType {
        LLAMA_CPP_F32.cache_type()
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        LLAMA_CPP_F32.to_cache(x)
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: f32) -> Tensor {
        match self.scores {
            Some(fault) => fault(q, k, scale),
            None => LLAMA_CPP_F32.scores(q, k, scale),
        }
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        match self.softmax {
            Some(fault) => fault(scores, mask),
            None => LLAMA_CPP_F32.softmax(scores, mask),
        }
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        LLAMA_CPP_F32.context(weights, v)
    }

    fn silu_gate(&self, gate: &Tensor, up: &Tensor) -> Tensor {
        LLAMA_CPP_F32.silu_gate(gate, up)
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        LLAMA_CPP_F32.add(a, b)
    }

    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor {
        LLAMA_CPP_F32.probabilities(logits, temperature)
    }
}
