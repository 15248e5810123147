//! Matrix products with a fixed summation order: linear layers, and queries with keys.
//!
//! Every value equals the dot product of [`crate::kernels::dot`], so results depend neither on the number of threads nor on
//! the number of rows.

use std::ops::Range;

use crate::kernels::dot::{Kernel, LANES, LaneColumns, PANEL, PanelSums, SIDE, STEPS};
use crate::parallel;
use crate::tensor::Tensor;

/// Source of rows of equal length.
pub trait RowSource: Sync {
    /// Returns the number of rows.
    fn rows(&self) -> usize;

    /// Returns the length of a row.
    fn columns(&self) -> usize;

    /// Returns a row: a slice of the source, or `scratch` after the values were written to it. `scratch` has the length
    /// of a row.
    fn row<'r>(&'r self, index: usize, scratch: &'r mut [f32]) -> &'r [f32];
}

/// Rows in memory, `stride` values apart.
#[derive(Clone, Copy, Debug)]
pub struct StridedRows<'r> {
    values: &'r [f32],
    stride: usize,
    rows: usize,
    columns: usize,
}

impl<'r> StridedRows<'r> {
    /// Returns the rows of a tensor.
    pub fn rows_of(x: &'r Tensor) -> Self {
        Self { values: x.data(), stride: x.row_len(), rows: x.rows(), columns: x.row_len() }
    }

    /// Creates rows from consecutive values, of which only the first `columns` of every `stride` are used.
    pub(crate) fn beginning(values: &'r [f32], stride: usize, columns: usize) -> Self {
        Self { values, stride, rows: values.len() / stride, columns }
    }

    /// Returns one head of every token (or key) of `[T, H, D]`.
    pub(crate) fn head_of(x: &'r Tensor, head: usize) -> Self {
        let columns = x.shape()[2];
        Self { values: &x.data()[head * columns..], stride: x.row_len(), rows: x.rows(), columns }
    }

    pub(crate) fn at(&self, row: usize) -> &'r [f32] {
        &self.values[row * self.stride..][..self.columns]
    }
}

impl RowSource for StridedRows<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn columns(&self) -> usize {
        self.columns
    }

    fn row<'r>(&'r self, index: usize, _: &'r mut [f32]) -> &'r [f32] {
        self.at(index)
    }
}

/// Minimum number of tokens for which tiles are faster than single dot products.
const TILED: usize = 3;

/// Number of steps in a partial sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialSums {
    /// `STEPS` steps, starting at the first column.
    Cut,
    /// One sum over all columns. Used if columns are keys, because a cache may have dropped the first keys.
    Whole,
}

/// Computes `x · wᵀ`: `[T, columns]` and `[O, columns]` to `[T, O]`.
///
/// # Panics
/// If there are no rows, or the row lengths differ.
pub fn product(x: StridedRows, w: &impl RowSource) -> Tensor {
    let mut values = vec![0.0; x.rows * w.rows()];
    fill(Kernel::fastest(), PartialSums::Cut, x, w, values.chunks_mut(w.rows()).collect());
    Tensor::new(&[x.rows, w.rows()], values)
}

/// Computes the product into the rows `values`, which must be zeros, in parallel.
///
/// # Panics
/// See [`product`]; also if `values` has another shape.
pub fn fill(
    kernel: Kernel,
    blocks: PartialSums,
    x: StridedRows,
    w: &impl RowSource,
    values: Vec<&mut [f32]>,
) {
    assert_eq!(x.columns, w.columns(), "rows of both sides are equally long");
    assert!(
        values.len() == x.rows && values.iter().all(|row| row.len() == w.rows()),
        "a place for each value"
    );
    let packed = (x.rows >= TILED).then(|| PackedRows::of(x));
    let width = width_of_panels(w.rows());
    parallel::each(
        cut(values, width),
        width * x.rows * x.columns / parallel::PRODUCTS,
        || (vec![0.0; w.columns()], PackedRows::default()),
        |(scratch, weights), panel, mut values| {
            let outputs = panel * width..panel * width + values[0].len();
            match &packed {
                Some(x) => {
                    weights.take(w, outputs, scratch);
                    x.times(kernel, blocks, weights, &mut values);
                }
                None => one_by_one(kernel, blocks, x, w, outputs, scratch, &mut values),
            }
        },
    );
}

/// Returns the number of weight rows that are multiplied together. With more rows, activations are loaded less
/// often from a distant cache; with fewer rows, all threads are busy.
fn width_of_panels(outputs: usize) -> usize {
    const LEAST: usize = 32;
    let fair = outputs.div_ceil(4 * rayon::current_num_threads());
    fair.next_multiple_of(SIDE).clamp(LEAST, PANEL)
}

/// Splits the rows of `[T, n]` into pieces of `width` columns; each piece has one slice for each row.
pub(crate) fn cut<'v>(
    rows: impl IntoIterator<Item = &'v mut [f32]>,
    width: usize,
) -> Vec<Vec<&'v mut [f32]>> {
    let mut pieces: Vec<Vec<&mut [f32]>> = Vec::new();
    for row in rows {
        pieces.resize_with(row.len().div_ceil(width), Vec::new);
        pieces.iter_mut().zip(row.chunks_mut(width)).for_each(|(piece, values)| piece.push(values));
    }
    pieces
}

fn one_by_one(
    kernel: Kernel,
    blocks: PartialSums,
    x: StridedRows,
    w: &impl RowSource,
    outputs: Range<usize>,
    scratch: &mut [f32],
    values: &mut [&mut [f32]],
) {
    for (at, output) in outputs.enumerate() {
        let weights = w.row(output, scratch);
        for (row, out) in values.iter_mut().enumerate() {
            out[at] += match blocks {
                PartialSums::Cut => kernel.dot(x.at(row), weights),
                PartialSums::Whole => (kernel.block)(x.at(row), weights),
            };
        }
    }
}

/// Rows in groups of four with interleaved lanes. The last group is padded with zeros.
#[derive(Default)]
struct PackedRows {
    steps: Vec<LaneColumns>,
    /// Number of steps in a group.
    len: usize,
}

impl PackedRows {
    fn of(x: StridedRows) -> Self {
        let len = x.columns.div_ceil(LANES);
        let mut steps = vec![LaneColumns::default(); x.rows.div_ceil(SIDE) * len];
        parallel::chunks(&mut steps, len.max(1), SIDE * x.columns, |group, steps| {
            (group * SIDE..x.rows.min((group + 1) * SIDE)).for_each(|row| put(x.at(row), row % SIDE, steps));
        });
        Self { steps, len }
    }

    /// Replaces the packed rows.
    fn take(&mut self, w: &impl RowSource, rows: Range<usize>, scratch: &mut [f32]) {
        self.len = w.columns().div_ceil(LANES);
        self.steps.resize(rows.len().div_ceil(SIDE) * self.len, LaneColumns::default());
        for (place, row) in rows.enumerate() {
            let group = &mut self.steps[place / SIDE * self.len..][..self.len];
            put(w.row(row, scratch), place % SIDE, group);
        }
    }

    /// Multiplies with the packed `weights` and writes the products to `values[row][weight]`.
    fn times(&self, kernel: Kernel, blocks: PartialSums, weights: &Self, values: &mut [&mut [f32]]) {
        let mut sums = PanelSums::default();
        let steps = if blocks == PartialSums::Cut { STEPS } else { self.len };
        for block in (0..self.len).step_by(steps) {
            for (x, values) in self.steps.chunks(self.len).zip(values.chunks_mut(SIDE)) {
                let x = &x[block..self.len.min(block + steps)];
                (kernel.tiles)(&weights.steps[block..], self.len, x, &mut sums);
                for (values, sums) in values.iter_mut().zip(&sums) {
                    let places = values.iter_mut().zip(sums.as_flattened());
                    // Zeros that were never read cost one page fault when written; reading them first would cost two.
                    match block {
                        0 => places.for_each(|(value, sum)| *value = 0.0 + sum),
                        _ => places.for_each(|(value, sum)| *value += sum),
                    }
                }
            }
        }
    }
}

/// Writes a row to its position in a group.
fn put(values: &[f32], place: usize, steps: &mut [LaneColumns]) {
    let (whole, rest) = values.as_chunks::<LANES>();
    steps.iter_mut().zip(whole).for_each(|(LaneColumns(step), lanes)| step[place] = *lanes);
    if let Some(LaneColumns(step)) = steps.get_mut(whole.len()) {
        step[place] = [0.0; LANES];
        step[place][..rest.len()].copy_from_slice(rest);
    }
}
