//! The errors that perturbed runs add to results, by size.

use std::sync::atomic::Ordering;

use super::{K, LIBRARY, PerturbedResults, U};
use crate::numerics::Numerics;
use crate::numerics::gaussian::{Gaussian, neighbour};
use crate::ops::attention::head_of;
use crate::tensor::Tensor;
use crate::weight::DType;

/// Roundings that another engine makes in addition to those of these numerics. Each field is the largest relative
/// error of one rounding, or 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Roundings {
    /// Rounding of the results of every operation.
    pub(crate) results: f64,
    /// Rounding of weights, and of activations before products with weights.
    pub(crate) operands: f64,
    /// Rounding of the intermediate values of norms.
    pub(crate) norms: f64,
    /// Rounding of an activation before its product with the up projection.
    pub(crate) activated: f64,
    /// Rounding of cosines and sines, and of the products of rotations.
    pub(crate) rotations: f64,
    /// Rounding of queries before products with keys.
    pub(crate) queries: f64,
    /// Rounding of scores, and of dot products before their scale.
    pub(crate) scores: f64,
    /// Rounding of attention weights and exponentials before products with values.
    pub(crate) attention: f64,
    /// Rounding of the sum over values after each key.
    pub(crate) sums: f64,
    /// Rounding of experts' weights and of weighted outputs.
    pub(crate) experts: f64,
    /// Rounding of the operands of a gated delta rule in chunks of tokens.
    pub(crate) chunks: f64,
}

impl PerturbedResults<'_> {
    /// Adds the error of one rounding, with the relative error `unit` at most.
    pub(super) fn rounded_by(&self, x: Tensor, unit: f64) -> Tensor {
        if unit == 0.0 { x } else { self.moved(x, |x, _| K * unit * x.abs()) }
    }

    /// Adds the error of rounding a result.
    pub(super) fn result(&self, x: Tensor) -> Tensor {
        self.rounded_by(x, self.roundings.results)
    }

    /// Adds errors to a sum of products: those of `operands` rounded operands, and those of `roundings` roundings of
    /// the sum.
    pub(super) fn in_short(&self, x: Tensor, operands: f64, roundings: f64) -> Tensor {
        if self.short_products == 0.0 {
            return x;
        }
        let sigma = K * self.short_products;
        self.moved(x, |x, rms| sigma * (operands * rms * rms + roundings * x * x).sqrt())
    }

    /// Adds the error of rounding to the cache's type, for a value that is multiplied with cached values.
    pub(super) fn as_the_cache(&self, x: Tensor) -> Tensor {
        let unit = match self.cache_type() {
            DType::F16 if self.short_attention => 1.0 / 2048.0,
            DType::BF16 if self.short_attention => 1.0 / 256.0,
            _ => return x,
        };
        self.moved(x, |x, _| K * unit * x.abs())
    }

    /// Adds a Gaussian number times `sigma(value, root mean square of its row)` to each value.
    pub(super) fn moved(&self, x: Tensor, sigma: impl Fn(f64, f64) -> f64) -> Tensor {
        self.moved_in(self.numerics.activation_type(), x, |_, x, rms| sigma(x, rms))
    }

    /// Adds errors to a result that is rounded to `dtype`. `sigma` also gets the index of the row.
    pub(super) fn moved_in(&self, dtype: DType, x: Tensor, sigma: impl Fn(usize, f64, f64) -> f64) -> Tensor {
        let mut random = Gaussian::new(self.seed, self.operations.fetch_add(1, Ordering::Relaxed));
        let (shape, width) = (x.shape().to_vec(), x.shape().last().copied().unwrap_or(1).max(1));
        let mut data = x.into_data();
        if matches!(dtype, DType::BF16 | DType::F16) {
            let one_in = if self.sums_alone { 64 } else { 4 };
            data.iter_mut().for_each(|value| *value = random.rounded_again(dtype, *value, one_in));
            return Tensor::new(&shape, data);
        }
        for (index, row) in data.chunks_mut(width).enumerate() {
            let square = |x: &f32| f64::from(*x) * f64::from(*x);
            let rms = (row.iter().map(square).sum::<f64>() / width as f64).sqrt();
            for value in row {
                let wide = f64::from(*value);
                *value = (wide + sigma(index, wide, rms) * random.next()) as f32;
            }
        }
        Tensor::new(&shape, data)
    }

    /// Adds a Gaussian number times `unit` times the value's entry in `sizes` to each value.
    pub(super) fn moved_by(&self, x: Tensor, sizes: &Tensor, unit: f64) -> Tensor {
        let mut random = Gaussian::new(self.seed, self.operations.fetch_add(1, Ordering::Relaxed));
        let moved =
            |(x, size): (&f32, &f32)| (f64::from(*x) + f64::from(*size) * unit * random.next()) as f32;
        Tensor::new(x.shape(), x.data().iter().zip(sizes.data()).map(moved).collect())
    }

    /// Adds errors to a result that stays in `f32`.
    pub(super) fn in_f32(&self, x: Tensor, sigma: impl Fn(f64, f64) -> f64) -> Tensor {
        self.moved_in(DType::F32, x, |_, x, rms| sigma(x, rms))
    }

    /// Adds the error of sums of `n` products.
    pub(super) fn summed(&self, x: Tensor, n: usize) -> Tensor {
        let n = n as f64;
        self.moved(x, |x, rms| K * U * (n / 2.0 * rms * rms + (n / 3.0 + 1.0) * x * x).sqrt())
    }

    /// Adds the errors of a product of `x` with a matrix, which sums over the columns of `x`.
    pub(super) fn products(&self, products: Tensor, x: &Tensor) -> Tensor {
        let summed = self.in_short(self.summed(products, x.row_len()), 2.0, 1.0);
        let operands = self.roundings.operands;
        let summed = match operands > 0.0 {
            true => self.moved(summed, |_, rms| K * operands * 2f64.sqrt() * rms),
            false => summed,
        };
        let summed = self.result(summed);
        if !self.eight_bits {
            return summed;
        }
        let steps: Vec<f64> = (0..x.rows()).map(|row| eight_bit_step(x.row(row))).collect();
        self.moved_in(self.activation_type(), summed, |row, _, rms| rms * steps[row.min(steps.len() - 1)])
    }

    /// Adds the error of a missing rounding to 16 bits to scores, since most kernels keep scores in `f32`.
    pub(super) fn unrounded(&self, scores: &Tensor) -> Tensor {
        let dtype = self.activation_type();
        if self.sums_alone || !matches!(dtype, DType::BF16 | DType::F16) {
            return scores.clone();
        }
        let mut random = Gaussian::new(self.seed, self.operations.fetch_add(1, Ordering::Relaxed));
        let moved = |x: &f32| {
            let next = neighbour(dtype, *x, random.uniform() < 0.5);
            if next.is_finite() { x + (next - x) * 0.5 * random.uniform() as f32 } else { *x }
        };
        Tensor::new(scores.shape(), scores.data().iter().map(moved).collect())
    }

    /// Adds the error of `roundings` elementwise operations.
    pub(super) fn rounded(&self, x: Tensor, roundings: f64) -> Tensor {
        self.moved(x, |x, _| U * roundings * x.abs())
    }

    /// Adds the errors of softmax. An exponential at distance L below the largest has the error of 0.42 L roundings of
    /// its argument, plus the error of the library function.
    pub(super) fn softmaxed(&self, dtype: DType, weights: Tensor) -> Tensor {
        let terms = weights.shape().last().copied().unwrap_or(1) as f64;
        let below = |x: f64| if x > 0.0 { -x.ln() } else { 0.0 };
        self.moved_in(dtype, weights, |_, x, _| {
            U * x.abs() * (0.42 * below(x) + LIBRARY + 1.0 + K * (terms / 3.0).sqrt())
        })
    }
}

/// Returns the size of the partial sums over values, in the order of keys: √Σ of their squares, `[T, H·D]`.
pub(super) fn partial_sums(weights: &Tensor, v: &Tensor) -> Tensor {
    let (&[heads, tokens, keys], &[_, key_heads, head_dim]) = (weights.shape(), v.shape()) else {
        panic!("weights are [H, T, S], values [S, Hkv, D]")
    };
    let of_head = |at: usize| {
        let (token, head) = (at / heads, at % heads);
        let weights = &weights.row(head)[token * keys..][..keys];
        let (mut sums, mut squares) = (vec![0.0f32; head_dim], vec![0.0f32; head_dim]);
        for (key, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight != 0.0) {
            let values = head_of(v, key, head * key_heads / heads);
            for ((sum, square), value) in sums.iter_mut().zip(&mut squares).zip(values) {
                *sum += weight * value;
                *square += *sum * *sum;
            }
        }
        squares.into_iter().map(f32::sqrt)
    };
    Tensor::new(&[tokens, heads * head_dim], (0..tokens * heads).flat_map(of_head).collect())
}

/// Returns the relative error of products if a row and its weights are rounded to 8 bits. An error that is uniform
/// over a step has the standard deviation step / √12, and there are two such errors.
fn eight_bit_step(row: &[f32]) -> f64 {
    let largest = row.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
    let square: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let rms = (square / row.len().max(1) as f64).sqrt();
    if rms > 0.0 { 2f64.sqrt() * largest / rms / 127.0 / 12f64.sqrt() } else { 0.0 }
}
