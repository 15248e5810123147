//! AltUp (Baykal et al., 2023): a residual stream of n parts of d values, of which a layer computes one. The layer predicts
//! all parts from each other, `[T, n·d]` and coefficients `[T, n·n]` to `[T, n·d]`. The first layer reads projections of the
//! embeddings with the magnitude of the embeddings, and the head reads the mean of all parts. Source: Gemma 3n.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::tensor::Tensor;

/// Smallest mean square by which a projection is divided.
pub(crate) const LEAST_SQUARE: f32 = 1e-5;

/// Computes part i of each row as `Σ coefs[i·n + p] · part p`. `round` is applied to each sum.
pub(crate) fn mixed(streams: &Tensor, coefs: &Tensor, round: impl Fn(f32) -> f32 + Sync) -> Tensor {
    let (width, count) = (streams.row_len(), parts(coefs));
    let d = width / count;
    Tensor::from_rows(streams.rows(), width, |row, out| {
        let (streams, coefs) = (streams.row(row), coefs.row(row));
        for (at, out) in out.iter_mut().enumerate() {
            let coefs = &coefs[at / d * count..][..count];
            let terms = coefs.iter().enumerate().map(|(part, coef)| streams[part * d + at % d] * coef);
            *out = round(terms.sum());
        }
    })
}

/// Returns the number of parts that coefficients mix.
pub(crate) fn parts(coefs: &Tensor) -> usize {
    coefs.row_len().isqrt()
}

/// Rescales each part of a row of `x`, `[T, k·d]`, to the magnitude of the row of `like`, `[T, d]`. `round` is
/// applied to each step. `magnitude` computes the magnitude of a row; its second argument is the smallest mean
/// square that it may use.
pub(crate) fn matched(
    x: &Tensor,
    like: &Tensor,
    magnitude: impl Fn(&[f32], f32) -> f32 + Sync,
    round: impl Fn(f32) -> f32 + Sync,
) -> Tensor {
    let d = like.row_len();
    Tensor::from_rows(x.rows(), x.row_len(), |row, out| {
        let target = magnitude(like.row(row), 0.0);
        for (out, x) in out.chunks_exact_mut(d).zip(x.row(row).chunks_exact(d)) {
            let own = magnitude(x, LEAST_SQUARE);
            out.iter_mut().zip(x).for_each(|(out, x)| *out = round(round(x * target) / own));
        }
    })
}

/// Returns the root of the sum of squares. The sum is at least `least` times the number of values. Squares are
/// `f32`, summed in `f64`, as in ggml.
pub(crate) fn root_of_sum(x: &[f32], least: f32) -> f32 {
    let sum: f64 = x.iter().map(|&x| f64::from(x * x)).sum();
    (sum as f32).max(least * x.len() as f32).sqrt()
}

/// Computes the mean of the `count` parts of each row: `[T, n·d]` to `[T, d]`. `average` divides a sum by the
/// number of parts.
pub(crate) fn mean(streams: &Tensor, count: usize, average: impl Fn(f32, f32) -> f32 + Sync) -> Tensor {
    let d = streams.row_len() / count;
    Tensor::from_rows(streams.rows(), d, |row, out| {
        let streams = streams.row(row);
        for (at, out) in out.iter_mut().enumerate() {
            let sum = (1..count).fold(streams[at], |sum, part| sum + streams[part * d + at]);
            *out = average(sum, count as f32);
        }
    })
}
