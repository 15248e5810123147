//! Sums of products, with what their rounding comes to.

use multiversion::multiversion;

use crate::exact::input::Input;
use crate::exact::value::{Exact, K, LAMBDA, U};

/// The sum over two rows, added up in any order.
pub(super) fn dot(a: &Input, b: &Input) -> Exact {
    inheriting(sum_of_products(&a.values, &b.values), a, b)
}

/// The same where terms that stand side by side are alike, as values of neighbouring keys are: partial sums then go further
/// from zero than those of any terms would.
pub(super) fn dot_in_order(a: &Input, b: &Input) -> Exact {
    let (mut sum, mut walked) = (0.0f64, 0.0);
    for (a, b) in a.values.iter().zip(&b.values) {
        sum += a * b;
        walked += sum * sum;
    }
    inheriting(sum_of_products(&a.values, &b.values).walking(walked), a, b)
}

fn inheriting(mut exact: Exact, a: &Input, b: &Input) -> Exact {
    for (one, other) in [(a, &b.values), (b, &a.values)] {
        if let Some(doubt) = &one.doubt {
            exact = inherit(exact, |at| other[at], &doubt.sigma, &doubt.radius);
        }
    }
    exact
}

/// The same of values that are given.
pub(super) fn sum_of_products(a: &[f64], b: &[f64]) -> Exact {
    let (value, squares, [least, largest]) = sums_and_sizes(a, b);
    let lost = U * largest.max(value.abs());
    added(a.len(), value, squares, if least < lost { smallest_products(a, b, lost) } else { 0.0 })
}

/// A sum of `n` products with that sum of squares. Beside a product that is nearly all of it, others may be lost.
fn added(n: usize, value: f64, squares: f64, lost: f64) -> Exact {
    let n = n as f64;
    let sigma = K * U * ((n / 2.0 + 1.0) * squares + (n / 3.0 + 1.0) * value * value).sqrt();
    Exact::statistical(value, sigma).losing(lost)
}

/// The sum of the sizes of products that are less than `least`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn smallest_products(a: &[f64], b: &[f64], least: f64) -> f64 {
    let size = |(a, b): (&f64, &f64)| (a * b).abs();
    a.iter().zip(b).map(size).map(|size| if size < least { size } else { 0.0 }).sum()
}

/// `Σ weights[key] · values[key]` for `width` columns, in the order of keys; the rows of `values` are `stride` apart.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
pub(super) fn means(weights: &[f64], values: &[f64], stride: usize, width: usize) -> Vec<Exact> {
    let seen = || weights.iter().enumerate().filter(|(_, weight)| **weight != 0.0);
    let (mut sums, mut squares, mut walked) = (vec![0.0; width], vec![0.0; width], vec![0.0; width]);
    let (mut least, mut largest) = (vec![f64::INFINITY; width], vec![0.0f64; width]);
    for (key, &weight) in seen() {
        let row = &values[key * stride..][..width];
        for at in 0..width {
            let product = weight * row[at];
            sums[at] += product;
            squares[at] += product * product;
            walked[at] += sums[at] * sums[at];
            largest[at] = larger(product.abs(), largest[at]);
            least[at] = smaller(product.abs(), least[at]);
        }
    }
    let mut lost = vec![0.0; width];
    let below: Vec<f64> = largest.iter().zip(&sums).map(|(most, sum)| U * most.max(f64::abs(*sum))).collect();
    let are_lost = least.iter().zip(&below).any(|(least, below)| least < below);
    for (key, &weight) in seen().filter(|_| are_lost) {
        let row = &values[key * stride..][..width];
        for at in 0..width {
            let size = (weight * row[at]).abs();
            lost[at] += if size < below[at] { size } else { 0.0 };
        }
    }
    let n = seen().count();
    (0..width).map(|at| added(n, sums[at], squares[at], lost[at]).walking(walked[at])).collect()
}

/// What inputs that are only known within a radius add to a sum, independently of each other, and at most.
pub(super) fn inherit(exact: Exact, weight: impl Fn(usize) -> f64, sigma: &[f64], radius: &[f64]) -> Exact {
    let (mut squares, mut most) = (0.0f64, 0.0f64);
    for (at, (sigma, radius)) in sigma.iter().zip(radius).enumerate() {
        let weight = weight(at);
        squares += (weight * sigma).powi(2);
        most += (weight * radius).abs();
    }
    let sigma = squares.sqrt();
    exact.moved(sigma, most.min(LAMBDA * sigma))
}

/// Σ a·b, and the sum of the squares of its terms: each product, or of blocks whose products are exact, what is rounded.
pub(super) fn sums(a: &[f64], b: &[f64], block: usize) -> (f64, f64) {
    match block {
        1 => sums_of_products(a, b),
        _ => {
            let (mut sum, mut of_blocks, mut of_lanes) = (0.0, 0.0, 0.0);
            for (a, b) in a.chunks(block).zip(b.chunks(block)) {
                let (product, lanes) = lanes_of_block(a, b);
                sum += product;
                of_blocks += product * product;
                of_lanes += lanes;
            }
            (sum, f64::max(of_blocks, of_lanes))
        }
    }
}

/// Codes that an instruction adds up in one lane. Kernels scale and round each lane of a block by itself, and lanes may
/// cancel each other.
const LANE: usize = 4;

/// The sum of a block's products, and the sum of the squares of its lanes.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn lanes_of_block(a: &[f64], b: &[f64]) -> (f64, f64) {
    let lane = |(a, b): (&[f64], &[f64])| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let lanes = a.chunks(LANE).zip(b.chunks(LANE)).map(lane);
    lanes.fold((0.0, 0.0), |(sum, squares), lane| (sum + lane, squares + lane * lane))
}

const LANES: usize = 16;

/// The sum of products, and that of their squares.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn sums_of_products(a: &[f64], b: &[f64]) -> (f64, f64) {
    let (sum, squares, _) = added_up::<false>(a, b);
    (sum, squares)
}

/// The same with the sizes of the least and the largest product.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn sums_and_sizes(a: &[f64], b: &[f64]) -> (f64, f64, [f64; 2]) {
    added_up::<true>(a, b)
}

#[inline(always)]
fn added_up<const SIZES: bool>(a: &[f64], b: &[f64]) -> (f64, f64, [f64; 2]) {
    let (mut sums, mut squares) = ([0.0f64; LANES], [0.0f64; LANES]);
    let (mut least, mut largest) = ([f64::INFINITY; LANES], [0.0f64; LANES]);
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            let product = a[lane] * b[lane];
            sums[lane] = a[lane].mul_add(b[lane], sums[lane]);
            squares[lane] = product.mul_add(product, squares[lane]);
            if SIZES {
                least[lane] = smaller(product.abs(), least[lane]);
                largest[lane] = larger(product.abs(), largest[lane]);
            }
        }
    }
    let (mut sum, mut of_squares) = (0.0, 0.0);
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        let product = a * b;
        (sum, of_squares) = (sum + product, of_squares + product * product);
        least[lane] = smaller(product.abs(), least[lane]);
        largest[lane] = larger(product.abs(), largest[lane]);
    }
    let ends = [least.into_iter().fold(f64::INFINITY, f64::min), largest.into_iter().fold(0.0, f64::max)];
    (sum + sums.iter().sum::<f64>(), of_squares + squares.iter().sum::<f64>(), ends)
}

/// Of NaN, `than`: one instruction, unlike [`f64::min`].
#[inline(always)]
fn smaller(value: f64, than: f64) -> f64 {
    if value < than { value } else { than }
}

/// Likewise.
#[inline(always)]
fn larger(value: f64, than: f64) -> f64 {
    if value > than { value } else { than }
}

/// Terms that a matrix unit adds up at once, cutting bits off.
const UNIT: usize = 16;

/// What cutting off comes to at most: one unit of each partial sum (measured in models of NVIDIA's units; Fasi et al., 2021).
pub(super) fn cut_off(a: &[f64], b: &[f64]) -> f64 {
    let (mut sum, mut partial) = (0.0f64, 0.0f64);
    for (a, b) in a.chunks(UNIT).zip(b.chunks(UNIT)) {
        sum += a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        partial += sum.abs();
    }
    2.0 * U * partial
}
