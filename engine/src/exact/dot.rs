//! Exact evaluation of sums of products, with their error bounds.

use multiversion::multiversion;
use multiversion::target::match_target;

use crate::exact::input::InputValues;
use crate::exact::value::{ExactValue, K, LAMBDA, U};

/// Evaluates the dot product of two rows, for any order of summation.
pub(crate) fn dot(a: &InputValues, b: &InputValues) -> ExactValue {
    inheriting(sum_of_products(&a.values, &b.values), a, b)
}

/// Evaluates a dot product whose neighbouring terms are similar, such as values of neighbouring keys. Its partial
/// sums become larger than those of random terms.
pub(crate) fn dot_in_order(a: &InputValues, b: &InputValues) -> ExactValue {
    let (mut sum, mut walked) = (0.0f64, 0.0);
    for (a, b) in a.values.iter().zip(&b.values) {
        sum += a * b;
        walked += sum * sum;
    }
    inheriting(sum_of_products(&a.values, &b.values).walking(walked), a, b)
}

/// Evaluates the mean of a row: a sum and a quotient.
pub(crate) fn average(x: &InputValues) -> ExactValue {
    let n = x.len() as f64;
    let sum = dot(x, &InputValues { values: vec![1.0; x.len()], doubt: None });
    let value = sum.value / n;
    sum.through(value, 1.0 / n).moved(K * U * value.abs(), U * value.abs())
}

fn inheriting(mut exact: ExactValue, a: &InputValues, b: &InputValues) -> ExactValue {
    for (one, other) in [(a, &b.values), (b, &a.values)] {
        if let Some(doubt) = &one.doubt {
            exact = inherit(exact, |at| other[at], &doubt.sigma, &doubt.radius);
        }
    }
    exact
}

/// Returns a sum of `n` products, given its value and sum of squares. Assumes that no small terms are lost.
#[inline(always)]
pub(crate) fn sum_of(n: usize, value: f64, squares: f64) -> ExactValue {
    added(n, value, squares, 0.0)
}

/// Evaluates a dot product of exact values.
fn sum_of_products(a: &[f64], b: &[f64]) -> ExactValue {
    let (value, squares, [least, largest]) = sums_and_sizes(a, b);
    let lost = U * largest.max(value.abs());
    added(a.len(), value, squares, if least < lost { smallest_products(a, b, lost) } else { 0.0 })
}

/// Returns a sum of `n` products, given its value and sum of squares. Small terms that add up to `lost` may be lost.
#[inline(always)]
fn added(n: usize, value: f64, squares: f64, lost: f64) -> ExactValue {
    let n = n as f64;
    let sigma = K * U * ((n / 2.0 + 1.0) * squares + (n / 3.0 + 1.0) * value * value).sqrt();
    ExactValue::statistical(value, sigma).losing(lost)
}

/// Returns the sum of the absolute products that are below `least`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn smallest_products(a: &[f64], b: &[f64], least: f64) -> f64 {
    let size = |(a, b): (&f64, &f64)| (a * b).abs();
    a.iter().zip(b).map(size).map(|size| if size < least { size } else { 0.0 }).sum()
}

/// Evaluates `Σ weights[key] · values[key]` for `width` columns, in the order of the keys. Rows of `values` are
/// `stride` apart.
pub(crate) fn means(weights: &[f64], values: &[f64], stride: usize, width: usize) -> Vec<ExactValue> {
    let seen: Vec<(f64, &[f64])> = weights
        .iter()
        .enumerate()
        .filter(|(_, weight)| **weight != 0.0)
        .map(|(key, &weight)| (weight, &values[key * stride..][..width]))
        .collect();
    let mut exacts = Vec::with_capacity(width);
    for first in (0..width).step_by(COLUMNS) {
        let here = COLUMNS.min(width - first);
        let of = match here == COLUMNS {
            true => KeySums::of(&seen, first),
            false => {
                let filled: Vec<[f64; COLUMNS]> =
                    seen.iter().map(|(_, row)| filled_up(&row[first..])).collect();
                let seen: Vec<(f64, &[f64])> =
                    seen.iter().zip(&filled).map(|((weight, _), row)| (*weight, row.as_slice())).collect();
                KeySums::of(&seen, 0)
            }
        };
        let lost = of.lost(&seen, first, here);
        let one = |at: usize| added(seen.len(), of.sums[at], of.squares[at], lost[at]).walking(of.walked[at]);
        exacts.extend((0..here).map(one));
    }
    exacts
}

/// Number of columns that are summed at the same time.
const COLUMNS: usize = 16;

/// Sums over keys, in key order.
struct KeySums {
    sums: [f64; COLUMNS],
    squares: [f64; COLUMNS],
    /// Sums of squared partial sums.
    walked: [f64; COLUMNS],
    least: [f64; COLUMNS],
    largest: [f64; COLUMNS],
}

impl KeySums {
    fn of(seen: &[(f64, &[f64])], first: usize) -> Self {
        let [sums, squares, walked, least, largest] = added_by_key(seen, first);
        Self { sums, squares, walked, least, largest }
    }

    /// Returns, for each column, the total size of the products that are too small to change the sum.
    fn lost(&self, seen: &[(f64, &[f64])], first: usize, width: usize) -> [f64; COLUMNS] {
        let mut lost = [0.0; COLUMNS];
        let below: [f64; COLUMNS] = std::array::from_fn(|at| U * self.largest[at].max(self.sums[at].abs()));
        if (0..width).all(|at| self.least[at] >= below[at]) {
            return lost;
        }
        for (weight, row) in seen {
            for ((lost, value), below) in lost.iter_mut().zip(&row[first..]).zip(below) {
                let size = (weight * value).abs();
                *lost += if size < below { size } else { 0.0 };
            }
        }
        lost
    }
}

fn filled_up(row: &[f64]) -> [f64; COLUMNS] {
    let mut filled = [0.0; COLUMNS];
    filled[..row.len()].copy_from_slice(row);
    filled
}

/// Returns sums, sums of squares, sums of squared partial sums, and the smallest and largest product of each column.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn added_by_key(seen: &[(f64, &[f64])], first: usize) -> [[f64; COLUMNS]; 5] {
    match_target! {
        "x86_64+avx512f" => by_blocks::<COLUMNS>(seen, first),
        _ => by_blocks::<{ COLUMNS / 2 }>(seen, first),
    }
}

/// Adds up `WIDE` columns at a time, so that their sums stay in registers.
#[inline(always)]
fn by_blocks<const WIDE: usize>(seen: &[(f64, &[f64])], first: usize) -> [[f64; COLUMNS]; 5] {
    let mut figures = [[0.0; COLUMNS]; 5];
    for block in 0..COLUMNS / WIDE {
        let (mut sums, mut squares, mut walked) = ([0.0f64; WIDE], [0.0f64; WIDE], [0.0f64; WIDE]);
        let (mut least, mut largest) = ([f64::INFINITY; WIDE], [0.0f64; WIDE]);
        for (weight, row) in seen {
            let Some((row, _)) = row[first + block * WIDE..].split_first_chunk::<WIDE>() else { continue };
            for at in 0..WIDE {
                let product = weight * row[at];
                sums[at] += product;
                squares[at] = product.mul_add(product, squares[at]);
                walked[at] = sums[at].mul_add(sums[at], walked[at]);
                largest[at] = larger(product.abs(), largest[at]);
                least[at] = smaller(product.abs(), least[at]);
            }
        }
        for (figures, of_block) in figures.iter_mut().zip([sums, squares, walked, least, largest]) {
            figures.as_chunks_mut().0[block] = of_block;
        }
    }
    figures
}

/// Adds the error that uncertain inputs cause in a sum. Independent errors add by their variances, error bounds by
/// their sum.
pub(crate) fn inherit(
    exact: ExactValue,
    weight: impl Fn(usize) -> f64,
    sigma: &[f64],
    radius: &[f64],
) -> ExactValue {
    let (mut squares, mut most) = (0.0f64, 0.0f64);
    for (at, (sigma, radius)) in sigma.iter().zip(radius).enumerate() {
        let weight = weight(at);
        squares += (weight * sigma).powi(2);
        most += (weight * radius).abs();
    }
    let sigma = squares.sqrt();
    exact.moved(sigma, most.min(LAMBDA * sigma))
}

/// Returns Σ a·b, and the sum of the squares of the terms that are rounded: products, or the sums of blocks if
/// products within a block are exact.
pub(crate) fn sums(a: &[f64], b: &[f64], block: usize) -> (f64, f64) {
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

/// Number of codes that an instruction sums in one lane. Kernels scale and round each lane of a block separately,
/// and the values of lanes may cancel.
const LANE: usize = 4;

/// Returns the sum of a block's products, and the sum of the squares of its lanes.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn lanes_of_block(a: &[f64], b: &[f64]) -> (f64, f64) {
    let lane = |(a, b): (&[f64], &[f64])| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let lanes = a.chunks(LANE).zip(b.chunks(LANE)).map(lane);
    lanes.fold((0.0, 0.0), |(sum, squares), lane| (sum + lane, squares + lane * lane))
}

/// Sums numbers.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
pub(crate) fn total(values: &[f64]) -> f64 {
    let mut sums = [0.0f64; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            sums[lane] += block[lane];
        }
    }
    rest.iter().sum::<f64>() + sums.iter().sum::<f64>()
}

const LANES: usize = 16;

/// Returns the sum of products and the sum of their squares.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn sums_of_products(a: &[f64], b: &[f64]) -> (f64, f64) {
    let (sum, squares, _) = added_up::<false>(a, b);
    (sum, squares)
}

/// Returns the sum, and the absolute values of the smallest and the largest product.
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

/// Returns the smaller number, and `than` if `value` is NaN. Compiles to one instruction; [`f64::min`] needs several.
#[inline(always)]
fn smaller(value: f64, than: f64) -> f64 {
    if value < than { value } else { than }
}

/// Returns the larger number, and `than` if `value` is NaN. Compiles to one instruction; [`f64::max`] needs several.
#[inline(always)]
fn larger(value: f64, than: f64) -> f64 {
    if value > than { value } else { than }
}

/// Number of terms that a matrix unit sums at once before it truncates.
const UNIT: usize = 16;

/// Returns the largest error from truncation, which is one unit of each partial sum. Measured in models of NVIDIA's
/// units (Fasi et al., 2021).
pub(crate) fn cut_off(a: &[f64], b: &[f64]) -> f64 {
    let (mut sum, mut partial) = (0.0f64, 0.0f64);
    for (a, b) in a.chunks(UNIT).zip(b.chunks(UNIT)) {
        sum += a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        partial += sum.abs();
    }
    2.0 * U * partial
}
