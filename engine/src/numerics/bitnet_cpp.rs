//! `bitnet.cpp`: the arithmetic of microsoft/BitNet on x86-64 with AVX2.
//!
//! Ternary matrices are multiplied with activations of 8 bits, scaled per token ([`crate::quant::ternary`]). The rest
//! is the arithmetic of llama.cpp of 2024. In its dumps, a pass of one token differs from a pass of several:
//! - with F16 weights (embeddings that are the head, too) the activations of one token are rounded to `f16`, those of
//!   several stay `f32`;
//! - with an `f16` KV cache the attention weights of one token are rounded to `f16`, those of several stay `f32`.
//!
//! Dot products of queries and keys always have the summation order of one token.

use std::ops::Range;

use crate::kernels::elementwise::plus_bias;
use crate::kernels::panels::panels;
use crate::numerics::{KvType, LlamaCpp, Numerics, ggml};
use crate::ops::activation::Activation;
use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::scaling::Multiplier;
use crate::parallel;
use crate::quant::{DotOrder, Product, quantised_rows, ternary};
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};

/// Computes as bitnet.cpp does; other operations are those of [`LlamaCpp`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BitnetCpp {
    /// Element type of the KV cache.
    pub kv: KvType,
}

/// Types of weights observed in dumps. With other types, the fork's products have other summation orders.
const WEIGHTS: &[DType] = &[DType::I2_S, DType::TL, DType::F32, DType::F16, DType::Q8_0];

impl BitnetCpp {
    const fn llama_cpp(self) -> LlamaCpp {
        LlamaCpp { kv: self.kv }
    }
}

impl Numerics for BitnetCpp {
    fn name(&self) -> &'static str {
        "bitnet.cpp"
    }

    fn weight_types(&self) -> &'static [DType] {
        WEIGHTS
    }

    fn native_types(&self) -> &'static [DType] {
        WEIGHTS
    }

    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor {
        self.llama_cpp().embed(table, tokens)
    }

    fn scale(&self, x: &Tensor, by: Multiplier) -> Tensor {
        self.llama_cpp().scale(x, by)
    }

    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor {
        self.llama_cpp().rms_norm(x, norm)
    }

    fn layer_norm(&self, x: &Tensor, norm: &LayerNorm) -> Tensor {
        self.llama_cpp().layer_norm(x, norm)
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.linear_of_pass(x, w, None, x.rows())
    }

    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor {
        let products = match w.dtype {
            dtype if ternary::is_ternary(dtype) => ternary_product(x, w),
            DType::F16 if tokens > 1 && w.cols.is_multiple_of(8) => mixed_product(x, w),
            _ => return self.llama_cpp().linear_of_pass(x, w, bias, tokens),
        };
        plus_bias(products, bias)
    }

    fn adds_rows_alike(&self, w: &Matrix, tokens: usize) -> bool {
        self.llama_cpp().adds_rows_alike(w, tokens)
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        self.linear_of_pass(x, w, Some(bias), x.rows())
    }

    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable {
        self.llama_cpp().rope_table(rope, positions)
    }

    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor {
        self.llama_cpp().rotate(x, table)
    }

    fn cache_type(&self) -> DType {
        self.llama_cpp().cache_type()
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        self.llama_cpp().to_cache(x)
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        match scale {
            AttentionScale::Products(factor) => {
                let q = self.llama_cpp().as_cached(q);
                ggml::scores(&q, k, self.cache_type(), DotOrder::Row, factor)
            }
            _ => self.llama_cpp().scores(q, k, scale),
        }
    }

    fn softmax_with_sinks(&self, scores: &Tensor, mask: Mask, sinks: &[f32]) -> Tensor {
        self.llama_cpp().softmax_with_sinks(scores, mask, sinks)
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        self.llama_cpp().softmax(scores, mask)
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        let one_token = weights.shape()[1] == 1;
        let kv = if one_token { self.kv } else { KvType::F32 };
        LlamaCpp { kv }.context(weights, v)
    }

    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor {
        self.llama_cpp().activation(x, activation)
    }

    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor {
        self.llama_cpp().gated(gate, up, activation)
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        self.llama_cpp().add(a, b)
    }

    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor {
        self.llama_cpp().probabilities(logits, temperature)
    }
}

/// Multiplies 8-bit activation codes with ternary weights in integers, then applies the scales of token and matrix.
fn ternary_product(x: &Tensor, w: &Matrix) -> Tensor {
    let tokens = parallel::map(x.rows(), w.cols, |token| ternary::quantise(w.dtype, x.row(token)));
    panels(x.rows(), w.rows, w.cols, |outputs, columns| ternary::fill(w, outputs, &tokens, columns))
}

/// Multiplies F16 weights with `f32` activations.
fn mixed_product(x: &Tensor, w: &Matrix) -> Tensor {
    let activations = quantised_rows(DType::F32, x.data(), x.row_len());
    let dots = Product::of_f16_with_f32();
    panels(x.rows(), w.rows, w.cols, |outputs, columns| {
        dots.fill(w.row_range(outputs), &activations, columns)
    })
}
