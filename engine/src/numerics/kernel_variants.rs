//! Correct kernels that round differently from ours: other orders of sums, fused and compensated sums, TF32 products,
//! approximate functions, flushed subnormals. A judge that fails one of them raises a false alarm.

use std::ops::Range;

use crate::kernels::elementwise::{per_column, zip};
use crate::numerics::delegate::delegate;
use crate::numerics::{Numerics, Transformers};
use crate::ops::activation::{Activation, ClampedGlu};
use crate::ops::attention::{self, AttentionScale, Mask};
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction};
use crate::ops::norm::{Gain, LayerNorm, RmsNorm, per_row};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::scaling::Multiplier;
use crate::quant::decode_matrix_row;
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Order in which a kernel sums the products of a dot product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummationOrder {
    /// Sums the products from the first to the last.
    Forward,
    /// Sums the products from the last to the first.
    Backward,
    /// Binary tree.
    Pairwise,
    /// This number of running sums, which are added at the end, as in SIMD registers.
    Lanes(usize),
    /// Blocks of this many products, each summed separately, as in split-K.
    Blocks(usize),
    /// Sequential, with fused multiply-add.
    Fused,
    /// Kahan's compensated summation.
    Kahan,
    /// Sums in `f64`.
    Double,
}

impl SummationOrder {
    /// One instance of each kind. For registers and blocks, several widths.
    pub const ALL: [Self; 12] = [
        Self::Forward,
        Self::Backward,
        Self::Pairwise,
        Self::Lanes(4),
        Self::Lanes(8),
        Self::Lanes(16),
        Self::Lanes(32),
        Self::Blocks(8),
        Self::Blocks(32),
        Self::Fused,
        Self::Kahan,
        Self::Double,
    ];

    /// Computes the dot product of two vectors of equal length.
    fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        let products = || a.iter().zip(b).map(|(a, b)| a * b);
        match self {
            Self::Forward => products().sum(),
            Self::Backward => products().rev().sum(),
            Self::Pairwise => pairwise(&products().collect::<Vec<_>>()),
            Self::Lanes(width) => {
                let mut lanes = vec![0.0; width];
                products().enumerate().for_each(|(at, product)| lanes[at % width] += product);
                pairwise(&lanes)
            }
            Self::Blocks(width) => {
                let blocks = a.chunks(width).zip(b.chunks(width));
                blocks.map(|(a, b)| Self::Forward.dot(a, b)).sum()
            }
            Self::Fused => a.iter().zip(b).fold(0.0, |sum, (a, &b)| a.mul_add(b, sum)),
            Self::Kahan => kahan(products()),
            Self::Double => a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32,
        }
    }
}

fn pairwise(values: &[f32]) -> f32 {
    match values {
        [] => 0.0,
        [value] => *value,
        _ => {
            let (left, right) = values.split_at(values.len() / 2);
            pairwise(left) + pairwise(right)
        }
    }
}

fn kahan(values: impl Iterator<Item = f32>) -> f32 {
    let (mut sum, mut lost) = (0.0f32, 0.0f32);
    for value in values {
        let value = value - lost;
        let next = sum + value;
        lost = (next - sum) - value;
        sum = next;
    }
    sum
}

/// Kernels that compute like [`Transformers`], with another summation order or approximate functions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelVariant {
    /// Type that results are rounded to.
    pub numerics: Transformers,
    /// Summation order.
    pub sum: SummationOrder,
    /// True if both operands of a product are rounded to TF32.
    pub tf32: bool,
    /// True if e^x is computed as 2^(x · log₂ e) in `f32`, as on GPUs.
    pub exp2: bool,
    /// True if 1/√x is computed from a 12-bit estimate and one Newton step, as with `rsqrtps`.
    pub rsqrt: bool,
    /// True if subnormal results are flushed to zero.
    pub flush: bool,
}

impl KernelVariant {
    /// Creates kernels that differ only in the summation order.
    pub const fn new(numerics: Transformers, sum: SummationOrder) -> Self {
        Self { numerics, sum, tf32: false, exp2: false, rsqrt: false, flush: false }
    }

    fn operand(self, mut values: Vec<f32>) -> Vec<f32> {
        if self.tf32 {
            values.iter_mut().for_each(|value| *value = to_tf32(*value));
        }
        values
    }

    fn rounded(self, x: Tensor) -> Tensor {
        let x = self.numerics.rounded(x);
        let flushed = |value: f32| if value.is_subnormal() { 0.0 } else { value };
        if self.flush { x.map(flushed) } else { x }
    }

    fn exp(self, x: f32) -> f32 {
        if self.exp2 { (x * std::f32::consts::LOG2_E).exp2() } else { x.exp() }
    }

    fn inverse_sqrt(self, x: f32) -> f32 {
        let exact = 1.0 / x.sqrt();
        if !self.rsqrt {
            return exact;
        }
        let estimate = f32::from_bits(exact.to_bits() & !0xfff);
        estimate * (1.5 - 0.5 * x * estimate * estimate)
    }

    fn products(self, x: &Tensor, w: &Matrix) -> Tensor {
        let rows: Vec<Vec<f32>> = (0..w.rows)
            .map(|row| {
                let mut weights = vec![0.0; w.cols];
                decode_matrix_row(w, row, &mut weights);
                weights.iter_mut().for_each(|weight| *weight = self.numerics.round(*weight));
                self.operand(weights)
            })
            .collect();
        let inputs = self.operand(x.data().to_vec());
        Tensor::from_rows(x.rows(), w.rows, |token, out| {
            let input = &inputs[token * w.cols..][..w.cols];
            out.iter_mut().zip(&rows).for_each(|(out, row)| *out = self.sum.dot(input, row));
        })
    }
}

/// Rounds to TF32 (10 mantissa bits), to nearest, ties to even.
fn to_tf32(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0xfff + ((bits >> 13) & 1)) & !0x1fff)
}

impl Numerics for KernelVariant {
    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor {
        if norm.gain != Gain::Weight {
            return self.numerics.rms_norm(x, norm);
        }
        let normed = per_row(x, norm.width(), |x, out| {
            let scale = self.inverse_sqrt(self.sum.dot(x, x) / x.len() as f32 + norm.eps);
            out.iter_mut().zip(x).for_each(|(out, x)| *out = x * scale);
        });
        let gains = norm.gains().map(|gain| self.numerics.round(gain));
        self.rounded(per_column(self.rounded(normed), gains, |x, gain| x * gain))
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.rounded(self.products(x, w))
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        let bias = bias.iter().map(|&bias| self.numerics.round(bias));
        self.rounded(per_column(self.products(x, w), bias, |x, bias| x + bias))
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        let [q, k] = [q, k].map(|x| Tensor::new(x.shape(), self.operand(x.data().to_vec())));
        let products = self.rounded(attention::scores_by(&q, &k, |q, k| self.sum.dot(q, k)));
        self.rounded(products.map(|product| product * scale.factor()))
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        self.rounded(attention::softmax_by(scores, mask, |row, out| {
            let max = attention::largest(row);
            out.iter_mut().zip(row).for_each(|(out, &score)| *out = self.exp(score - max));
            let total = self.sum.dot(out, &vec![1.0; out.len()]);
            out.iter_mut().for_each(|weight| *weight /= total);
        }))
    }

    fn softmax_with_sinks(&self, scores: &Tensor, mask: Mask, sinks: &[f32]) -> Tensor {
        self.rounded(attention::softmax_with_sinks(scores, mask, sinks, |x| x))
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        let &[heads, tokens, keys] = weights.shape() else { panic!("weights are [H, T, S]") };
        let (kv_heads, head_dim) = (v.shape()[1], v.shape()[2]);
        let weights = self.operand(weights.data().to_vec());
        let values = self.operand(v.data().to_vec());
        self.rounded(Tensor::from_rows(tokens, heads * head_dim, |token, out| {
            for (at, out) in out.iter_mut().enumerate() {
                let (head, dim) = (at / head_dim, at % head_dim);
                let of_head = (head * kv_heads / heads) * head_dim + dim;
                let column: Vec<f32> = values.chunks(kv_heads * head_dim).map(|row| row[of_head]).collect();
                *out = self.sum.dot(&weights[(head * tokens + token) * keys..][..keys], &column);
            }
        }))
    }

    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor {
        match activation {
            Activation::Silu => self.rounded(x.clone().map(|x| x / (1.0 + self.exp(-x)))),
            _ => self.numerics.activation(x, activation),
        }
    }

    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor {
        self.rounded(zip(&self.activation(gate, activation), up, |gate, up| gate * up))
    }

    delegate!(
        numerics: cache_transform, name, weight_types, native_types, activation_type, cache_type, cache_noise, embed, scale, layer_norm,
        bit_linear, rope_table, rotate, to_cache, add_alibi, clamped_glu, likelihoods, router_logits, scores_of_logits, expert_scores, choose, expert_weights, mix, shared_weights,
        add_shared, row_scaled, tempered, mix_streams, match_magnitude, mean_of_streams, sparse_gate, short_convolution, l2_norm, decay, delta_rule, silu_gated, gated_by_part, step_sizes, recurrence, recurs_alike, gated_norm, add, add_halves, probabilities
    );
}
