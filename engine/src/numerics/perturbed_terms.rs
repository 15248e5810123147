//! Perturbed runs that add a random rounding error to each term of a sum, to imitate kernels that sum in another order.
//!
//! [`PerturbedResults`](crate::numerics::PerturbedResults) estimates the error from the result of the sum. The estimate is too small if
//! large terms cancel, for example in q·k with a few large channels, or with block weights that have a minimum if the activations
//! have a nonzero mean. A sum of n terms t has an error of about k·u·√(n/2)·√(Σ t²), where u is the unit roundoff. To draw such an
//! error, each term is multiplied by a Gaussian number: the sum of these products has the standard deviation √(Σ t²).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::numerics::Numerics;
use crate::numerics::delegate::delegate;
use crate::numerics::gaussian::Gaussian;
use crate::numerics::perturbed_results::{K, U};
use crate::ops::activation::{Activation, ClampedGlu};
use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction};
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::scaling::Multiplier;
use crate::quant::round_to_f16;
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Wraps numerics and perturbs each term of a sum within its rounding.
pub struct PerturbedTerms<'n> {
    numerics: &'n dyn Numerics,
    seed: u64,
    /// True if operands of `f16` products are rounded to `f16`.
    in_f16: bool,
    operations: AtomicU64,
}

impl<'n> PerturbedTerms<'n> {
    /// Wraps `numerics`. The same seed gives the same errors for the same operations in the same order.
    pub fn new(numerics: &'n dyn Numerics, seed: u64) -> Self {
        Self { numerics, seed, in_f16: false, operations: AtomicU64::new(0) }
    }

    /// Rounds activations to `f16` before products with F16 weights or with an `f16` cache. bitnet.cpp's kernels do
    /// this for one token, but not for several tokens.
    pub fn rounding_to_f16(self) -> Self {
        Self { in_f16: true, ..self }
    }

    fn rounded_for(&self, other: DType, x: &Tensor) -> Tensor {
        match other {
            DType::F16 if self.in_f16 => Tensor::new(x.shape(), round_to_f16(x.data())),
            _ => x.clone(),
        }
    }

    /// Adds to `result` the error of each sum of `n` products. `product` computes these errors from random errors of the
    /// terms of `x`.
    fn moved(&self, result: Tensor, x: &Tensor, n: usize, product: impl Fn(&Tensor) -> Tensor) -> Tensor {
        // Streams of the upper half, so that no other noise with this seed is the same.
        let operation = self.operations.fetch_add(1, Ordering::Relaxed) | 1 << 63;
        let mut random = Gaussian::new(self.seed, operation);
        let noise = x.data().iter().map(|x| x * random.next() as f32).collect();
        let noise = product(&Tensor::new(x.shape(), noise));
        let size = (K * U * (n as f64 / 2.0).sqrt()) as f32;
        let data = result.data().iter().zip(noise.data()).map(|(result, noise)| result + size * noise);
        Tensor::new(result.shape(), data.collect())
    }
}

impl Numerics for PerturbedTerms<'_> {
    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        let x = self.rounded_for(w.dtype, x);
        self.moved(self.numerics.linear(&x, w), &x, w.cols, |x| self.numerics.linear(x, w))
    }

    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor {
        let x = self.rounded_for(w.dtype, x);
        let made = self.numerics.linear_of_pass(&x, w, bias, tokens);
        self.moved(made, &x, w.cols, |x| self.numerics.linear_of_pass(x, w, None, tokens))
    }

    fn router_logits(&self, x: &Tensor, w: &Matrix, precision: RouterPrecision) -> Tensor {
        let (x, product) =
            (self.rounded_for(w.dtype, x), |x: &_| self.numerics.router_logits(x, w, precision));
        self.moved(product(&x), &x, w.cols, product)
    }

    fn linear_of_expert(&self, x: &Tensor, w: &Matrix) -> Tensor {
        let (x, product) = (self.rounded_for(w.dtype, x), |x: &_| self.numerics.linear_of_expert(x, w));
        self.moved(product(&x), &x, w.cols, product)
    }

    fn mix(&self, outputs: &Tensor, weights: &Tensor, scores: &Tensor, is_whole: bool) -> Tensor {
        let product = |outputs: &_| self.numerics.mix(outputs, weights, scores, is_whole);
        self.moved(product(outputs), outputs, weights.row_len(), product)
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        let x = self.rounded_for(w.dtype, x);
        self.moved(self.numerics.affine(&x, w, bias), &x, w.cols, |x| self.numerics.linear(x, w))
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        let product = |q: &_| self.numerics.scores(q, k, scale);
        self.moved(product(q), q, q.row_len() / q.shape()[1], product)
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        let weights = self.rounded_for(self.cache_type(), weights);
        let product = |weights: &_| self.numerics.context(weights, v);
        self.moved(product(&weights), &weights, v.rows(), product)
    }

    // Products of integers are exact.
    delegate!(
        numerics: cache_transform, name, weight_types, native_types, activation_type, cache_type, cache_noise, embed, scale, rms_norm,
        layer_norm, adds_rows_alike, bit_linear, rope_table, rotate, to_cache, softmax, softmax_with_sinks, add_alibi, clamped_glu, sums_of_values, activation, gated,
        likelihoods, scores_of_logits, expert_scores, choose, expert_weights, shared_weights, add_shared, row_scaled, tempered, mix_streams, match_magnitude, mean_of_streams, sparse_gate, short_convolution, l2_norm, decay, delta_rule, silu_gated, gated_by_part, step_sizes, recurrence, recurs_alike, gated_norm, add, add_halves, probabilities
    );
}
