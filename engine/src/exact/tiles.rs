//! Tiles of dot products: many rows with many others, with the sums of squared products.
//!
//! Each sum is accumulated in `f64` from the first column to the last with fused multiply-adds, so its bits are the
//! same on every machine and in every tile. The sum of squares only needs the right magnitude. It is accumulated in
//! `f32`, relative to the largest value of each row.

use multiversion::multiversion;
use multiversion::target::match_target;

/// Number of interleaved rows on the weights' side; the other side has `SIDE` rows.
pub(crate) const PANEL: usize = 32;
pub(crate) const SIDE: usize = 4;

/// Number of columns that are interleaved at a time, so that the written memory stays in the cache.
const CHUNK: usize = 64;

/// Sum of relative squares below which squares too small for `f32` may matter.
const SURE: f32 = 1e-20;

/// `N` interleaved rows: the first column of all rows, then the second. Missing rows are zero.
#[derive(Debug)]
pub(crate) struct InterleavedRows<const N: usize> {
    values: Vec<[f64; N]>,
    /// Squares of values relative to the largest value of their row.
    squares: Vec<[f32; N]>,
    largest: [f64; N],
    least: [f64; N],
}

impl<const N: usize> InterleavedRows<N> {
    /// Packs at most `N` rows of equal length.
    pub(crate) fn of(rows: &[&[f64]]) -> Self {
        let columns = rows.first().map_or(0, |row| row.len());
        let (mut values, mut squares) = (vec![[0.0; N]; columns], vec![[0.0; N]; columns]);
        let (mut largest, mut least) = ([0.0; N], [0.0; N]);
        for ((row, largest), least) in rows.iter().zip(&mut largest).zip(&mut least) {
            (*least, *largest) = sizes(row);
        }
        for first in (0..columns).step_by(CHUNK) {
            let end = columns.min(first + CHUNK);
            for (place, row) in rows.iter().enumerate() {
                let inverse = if largest[place] > 0.0 { 1.0 / largest[place] } else { 0.0 };
                let room = values[first..end].iter_mut().zip(&mut squares[first..end]);
                for (&x, (value, square)) in row[first..end].iter().zip(room) {
                    let relative = (x * inverse) as f32;
                    (value[place], square[place]) = (x, relative * relative);
                }
            }
        }
        Self { values, squares, largest, least }
    }
}

impl InterleavedRows<PANEL> {
    /// Returns lower and upper bounds of the sizes of the products with one of four rows.
    pub(crate) fn sizes(&self, four: &InterleavedRows<SIDE>, row: usize) -> ([f64; PANEL], [f64; PANEL]) {
        (self.least.map(|least| least * four.least[row]), self.largest.map(|most| most * four.largest[row]))
    }
}

/// Returns the smallest and the largest absolute value of a row. NaN if a value is not finite, so that its squares
/// are never used.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn sizes(row: &[f64]) -> (f64, f64) {
    const LANES: usize = 16;
    let (mut least, mut largest, mut nothing) = ([f64::INFINITY; LANES], [0.0; LANES], [0.0; LANES]);
    let (whole, rest) = row.as_chunks::<LANES>();
    let mut meet = |lane: usize, x: f64| {
        let size = x.abs();
        least[lane] = if size < least[lane] { size } else { least[lane] };
        largest[lane] = if size > largest[lane] { size } else { largest[lane] };
        nothing[lane] += x * 0.0;
    };
    for row in whole {
        for (lane, &x) in row.iter().enumerate() {
            meet(lane, x);
        }
    }
    rest.iter().enumerate().for_each(|(lane, &x)| meet(lane, x));
    let nothing: f64 = nothing.iter().sum();
    let least = least.into_iter().fold(f64::INFINITY, f64::min);
    (least + nothing, largest.into_iter().fold(0.0, f64::max) + nothing)
}

/// Products of four rows with a panel.
#[derive(Debug)]
pub(crate) struct PanelTile {
    sums: [[f64; PANEL]; SIDE],
    squares: [[f32; PANEL]; SIDE],
    scales: [[f64; PANEL]; SIDE],
}

impl PanelTile {
    pub(crate) fn new(panel: &InterleavedRows<PANEL>, four: &InterleavedRows<SIDE>) -> Self {
        let scale = |row: usize| panel.largest.map(|largest| (largest * four.largest[row]).powi(2));
        Self {
            sums: sums(&panel.values, &four.values),
            squares: squares(&panel.squares, &four.squares),
            scales: [scale(0), scale(1), scale(2), scale(3)],
        }
    }

    /// Returns the sums of one of the four rows, and the sums of squares; the latter are NaN if uncertain.
    pub(crate) fn row(&self, row: usize) -> (&[f64; PANEL], [f64; PANEL]) {
        let (squares, scales) = (&self.squares[row], &self.scales[row]);
        let mut known = [0.0; PANEL];
        for ((known, &square), &scale) in known.iter_mut().zip(squares).zip(scales) {
            // A scale of zero means that all values are zero.
            *known = if square >= SURE || scale == 0.0 { f64::from(square) * scale } else { f64::NAN };
        }
        (&self.sums[row], known)
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn sums(panel: &[[f64; PANEL]], four: &[[f64; SIDE]]) -> [[f64; PANEL]; SIDE] {
    match_target! {
        "x86_64+avx512f" => by_blocks::<f64, 32>(panel, four, f64::mul_add),
        _ => by_blocks::<f64, 8>(panel, four, f64::mul_add),
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn squares(panel: &[[f32; PANEL]], four: &[[f32; SIDE]]) -> [[f32; PANEL]; SIDE] {
    match_target! {
        "x86_64+avx512f" => by_blocks::<f32, 32>(panel, four, f32::mul_add),
        _ => by_blocks::<f32, 16>(panel, four, f32::mul_add),
    }
}

/// Computes a tile's sums, `WIDE` rows of the panel at a time, so that the sums of these rows stay in registers.
#[inline(always)]
fn by_blocks<T: Copy + Default, const WIDE: usize>(
    panel: &[[T; PANEL]],
    four: &[[T; SIDE]],
    mul_add: impl Fn(T, T, T) -> T,
) -> [[T; PANEL]; SIDE] {
    let mut sums = [[T::default(); PANEL]; SIDE];
    for block in 0..PANEL / WIDE {
        let mut of_block = [[T::default(); WIDE]; SIDE];
        for (w, x) in panel.iter().zip(four) {
            let w = &w.as_chunks::<WIDE>().0[block];
            for row in 0..SIDE {
                for place in 0..WIDE {
                    of_block[row][place] = mul_add(w[place], x[row], of_block[row][place]);
                }
            }
        }
        for (sums, of_block) in sums.iter_mut().zip(of_block) {
            sums.as_chunks_mut().0[block] = of_block;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::{InterleavedRows, PANEL, PanelTile, SIDE};

    fn rows(count: usize, columns: usize, seed: f64) -> Vec<Vec<f64>> {
        let value = |row: usize, at: usize| ((row * columns + at + 1) as f64 * seed).sin() * (1 + row) as f64;
        (0..count).map(|row| (0..columns).map(|at| value(row, at)).collect()).collect()
    }

    fn tile(weights: &[Vec<f64>], tokens: &[Vec<f64>]) -> PanelTile {
        let panel = InterleavedRows::<PANEL>::of(&weights.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let four = InterleavedRows::<SIDE>::of(&tokens.iter().map(Vec::as_slice).collect::<Vec<_>>());
        PanelTile::new(&panel, &four)
    }

    #[test]
    fn sums_are_those_of_each_pair_of_rows_by_itself() {
        for (outputs, count, columns) in [(PANEL, SIDE, 576), (7, 3, 5), (1, 1, 1), (PANEL, 2, 130)] {
            let (weights, tokens) = (rows(outputs, columns, 0.37), rows(count, columns, 0.73));
            let tile = tile(&weights, &tokens);
            for (row, x) in tokens.iter().enumerate() {
                let (sums, squares) = tile.row(row);
                for (place, w) in weights.iter().enumerate() {
                    let sum = w.iter().zip(x).fold(0.0, |sum, (w, x)| w.mul_add(*x, sum));
                    let square: f64 = w.iter().zip(x).map(|(w, x)| (w * x).powi(2)).sum();
                    assert_eq!(sums[place], sum);
                    assert!((squares[place] / square - 1.0).abs() < 1e-5, "{} for {square}", squares[place]);
                }
            }
        }
    }

    #[test]
    fn squares_that_are_not_certain_are_not_told() {
        let large_meets_small = vec![vec![1.0, 1e-15]];
        let (sums, squares) = {
            let tile = tile(&large_meets_small, &[vec![1e-15, 1.0]]);
            (tile.row(0).0[0], tile.row(0).1[0])
        };
        assert!((sums - 2e-15).abs() < 1e-28 && squares.is_nan());
        for odd in [f64::NAN, f64::INFINITY] {
            assert!(tile(&[vec![odd, 1.0]], &[vec![1.0, 1.0]]).row(0).1[0].is_nan());
        }
        let nothing = tile(&[vec![0.0, 0.0]], &[vec![1.0, 1.0]]);
        assert_eq!((nothing.row(0).0[0], nothing.row(0).1[0]), (0.0, 0.0), "zeros are certain");
    }
}
