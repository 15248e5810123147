//! Numerics whose results are moved at random as far as honest rounding may move them.
//!
//! What several such runs come to at the logits is what rounding can do to a model on a prompt. The sigmas are those of
//! sums in any order: with u = 2⁻²⁴ and k = 0.425, the root mean square of one rounding in units of its result, a sum of
//! n products x of root mean square Q has k·u·√(n/2·Q² + (n/3 + 1)·x²) (first order, zero-mean roundings: Higham & Mary,
//! 2019). For Q stands the root mean square of the results of a token: it is theirs if the rows of a matrix are unrelated.
//! Where results are rounded to 16 bits, another engine may round once more inside: a result moves to its neighbour.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::numerics::Numerics;
use crate::ops::attention::{Mask, Scale};
use crate::ops::ffn::Activation;
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Half the spacing of `f32` at 1.
pub(super) const U: f64 = 1.0 / (1u64 << 24) as f64;
/// One rounding, relative to its result: √(0.541 / 3) of u, for mantissas that are evenly spread on a logarithmic scale.
pub(super) const K: f64 = 0.425;
/// Units in the last place by which a library's exponential or tangent may be off.
const LIBRARY: f64 = 2.0;

/// Other numerics with noise. The same seed gives the same noise to the same operations in the same order.
pub struct Noisy<'n> {
    numerics: &'n dyn Numerics,
    seed: u64,
    operations: AtomicU64,
}

impl<'n> Noisy<'n> {
    /// Moves the results of `numerics`.
    pub fn new(numerics: &'n dyn Numerics, seed: u64) -> Self {
        Self { numerics, seed, operations: AtomicU64::new(0) }
    }

    /// Adds to each value what `sigma` says of it and of the root mean square of its row, times a Gaussian number.
    fn moved(&self, x: Tensor, sigma: impl Fn(f64, f64) -> f64) -> Tensor {
        self.moved_in(self.numerics.activation_type(), x, sigma)
    }

    /// The same of a result that is rounded to `dtype`.
    fn moved_in(&self, dtype: DType, x: Tensor, sigma: impl Fn(f64, f64) -> f64) -> Tensor {
        let mut random = Gaussian::new(self.seed, self.operations.fetch_add(1, Ordering::Relaxed));
        let (shape, width) = (x.shape().to_vec(), x.shape().last().copied().unwrap_or(1).max(1));
        let mut data = x.into_data();
        for row in data.chunks_mut(width) {
            let square = |x: &f32| f64::from(*x) * f64::from(*x);
            let rms = (row.iter().map(square).sum::<f64>() / width as f64).sqrt();
            for value in row {
                let by = sigma(f64::from(*value), rms) * random.next();
                *value = match step(dtype, *value) {
                    None => (f64::from(*value) + by) as f32,
                    // As a second rounding would: by less than half a step, to the neighbour or back.
                    Some(step) if random.uniform() < 0.25 => *value + step.copysign(by as f32),
                    Some(_) => *value,
                };
            }
        }
        Tensor::new(&shape, data)
    }

    /// The result of sums of `n` products.
    fn summed(&self, x: Tensor, n: usize) -> Tensor {
        let n = n as f64;
        self.moved(x, |x, rms| K * U * (n / 2.0 * rms * rms + (n / 3.0 + 1.0) * x * x).sqrt())
    }

    /// The result of a few operations on one value, each a rounding.
    fn rounded(&self, x: Tensor, roundings: f64) -> Tensor {
        self.moved(x, |x, _| U * roundings * x.abs())
    }
}

/// The spacing of a 16-bit type at a value; `None` of a wider type, and of what is no number or zero.
fn step(dtype: DType, value: f32) -> Option<f32> {
    let (bits, least) = match dtype {
        DType::BF16 => (7, -126),
        DType::F16 => (10, -14),
        _ => return None,
    };
    let exponent = (value.abs().log2().floor() as i32).max(least);
    Some(if value != 0.0 && value.is_finite() { 2f32.powi(exponent - bits) } else { 0.0 })
}

/// Gaussian numbers, in pairs (Box & Muller, 1958).
pub(super) struct Gaussian {
    random: ChaCha8Rng,
    spare: Option<f64>,
}

impl Gaussian {
    pub(super) fn new(seed: u64, operation: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(operation);
        Self { random, spare: None }
    }

    fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn next(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }
}

impl Numerics for Noisy<'_> {
    fn name(&self) -> &'static str {
        self.numerics.name()
    }

    fn weight_types(&self) -> &'static [DType] {
        self.numerics.weight_types()
    }

    fn native_types(&self) -> &'static [DType] {
        self.numerics.native_types()
    }

    fn activation_type(&self) -> DType {
        self.numerics.activation_type()
    }

    fn adds_rows_alike(&self, w: &Matrix, tokens: usize) -> bool {
        self.numerics.adds_rows_alike(w, tokens)
    }

    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor {
        self.numerics.embed(table, tokens)
    }

    fn scale(&self, x: &Tensor, factor: f32) -> Tensor {
        self.rounded(self.numerics.scale(x, factor), K)
    }

    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor {
        let roundings = K * ((norm.weight.len() as f64 / 3.0).sqrt() / 2.0 + 3.0);
        self.rounded(self.numerics.rms_norm(x, norm), roundings)
    }

    fn layer_norm(&self, x: &Tensor, norm: &LayerNorm) -> Tensor {
        let terms = (norm.weight.len() as f64 / 3.0).sqrt();
        self.moved(self.numerics.layer_norm(x, norm), |x, rms| K * U * (terms * rms + 3.0 * x.abs()))
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.summed(self.numerics.linear(x, w), w.cols)
    }

    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, tokens: usize) -> Tensor {
        self.summed(self.numerics.linear_of_pass(x, w, tokens), w.cols)
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        self.summed(self.numerics.affine(x, w, bias), w.cols)
    }

    fn bit_linear(&self, x: &Tensor, w: &Matrix, factor: Option<Factor>) -> Tensor {
        // Products of integers are exact.
        self.rounded(self.numerics.bit_linear(x, w, factor), 2.0)
    }

    fn rope_table(&self, rope: &Rope, positions: Range<usize>) -> RopeTable {
        self.numerics.rope_table(rope, positions)
    }

    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor {
        // An angle of so many radians is off by as many roundings.
        let angle = table.largest_angle() + 5.0;
        self.moved(self.numerics.rotate(x, table), |x, rms| U * angle * (x * x + rms * rms).sqrt())
    }

    fn cache_type(&self) -> DType {
        self.numerics.cache_type()
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        self.numerics.to_cache(x)
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: Scale) -> Tensor {
        let head_dim = q.shape().last().copied().unwrap_or(1);
        self.summed(self.numerics.scores(q, k, scale), head_dim)
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        self.softmaxed(self.activation_type(), self.numerics.softmax(scores, mask))
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        let keys = weights.shape().last().copied().unwrap_or(1);
        self.summed(self.numerics.context(weights, v), keys)
    }

    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor {
        self.rounded(self.numerics.activation(x, activation), 3.0 + 2.0 * LIBRARY)
    }

    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor {
        self.rounded(self.numerics.gated(gate, up, activation), 3.0 + 2.0 * LIBRARY)
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        self.rounded(self.numerics.add(a, b), K)
    }

    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor {
        self.softmaxed(DType::F32, self.numerics.probabilities(logits, temperature))
    }
}

impl Noisy<'_> {
    /// An exponential of L below the largest is off by 0.42 L roundings of its argument, and by the library's.
    fn softmaxed(&self, dtype: DType, weights: Tensor) -> Tensor {
        let terms = weights.shape().last().copied().unwrap_or(1) as f64;
        let below = |x: f64| if x > 0.0 { -x.ln() } else { 0.0 };
        self.moved_in(dtype, weights, |x, _| {
            U * x.abs() * (0.42 * below(x) + LIBRARY + 1.0 + K * (terms / 3.0).sqrt())
        })
    }
}
