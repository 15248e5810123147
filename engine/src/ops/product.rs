//! Products of rows with rows: linear layers, and queries with keys, where no reference's order of sums is reproduced.
//!
//! Every value is the dot product of [`crate::ops::dot`], whatever computes it beside others: results depend neither on
//! the number of threads nor on how many rows there are.

use std::ops::Range;

use crate::ops::dot::{Kernel, LANES, LaneColumns, PANEL, PanelSums, SIDE, STEPS};
use crate::parallel;
use crate::tensor::Tensor;

/// Rows of numbers of one length.
pub trait RowSource: Sync {
    /// Returns the number of rows.
    fn rows(&self) -> usize;

    /// Returns the length of a row.
    fn columns(&self) -> usize;

    /// A row, where it lies or else written into `scratch`, which is as long.
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
    /// The rows of a tensor.
    pub fn rows_of(x: &'r Tensor) -> Self {
        Self { values: x.data(), stride: x.row_len(), rows: x.rows(), columns: x.row_len() }
    }

    /// Rows one behind the other, of which only the first `columns` columns count.
    pub fn beginning(values: &'r [f32], stride: usize, columns: usize) -> Self {
        Self { values, stride, rows: values.len() / stride, columns }
    }

    /// Returns one head of every token (or key) of `[T, H, D]`.
    pub fn head_of(x: &'r Tensor, head: usize) -> Self {
        let columns = x.shape()[2];
        Self { values: &x.data()[head * columns..], stride: x.row_len(), rows: x.rows(), columns }
    }

    /// Returns one row.
    pub fn at(&self, row: usize) -> &'r [f32] {
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

/// Number of tokens from which on tiles are faster than dot products.
const TILED: usize = 3;

/// Number of steps in a partial sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialSums {
    /// [`STEPS`], the first of them from the first column on.
    Cut,
    /// One sum over all columns: for columns that are keys, of which a cache may have dropped the first.
    Whole,
}

/// `x · wᵀ`: `[T, columns]` and `[O, columns]` to `[T, O]`.
///
/// # Panics
/// If there are no rows, or those of one side are longer than the other's.
pub fn product(x: StridedRows, w: &impl RowSource) -> Tensor {
    let mut values = vec![0.0; x.rows * w.rows()];
    fill(Kernel::fastest(), PartialSums::Cut, x, w, values.chunks_mut(w.rows()).collect());
    Tensor::new(&[x.rows, w.rows()], values)
}

/// Computes the product into the rows `values`, which must be zeros, in parallel.
///
/// # Panics
/// As [`product`], or if `values` are other rows than these.
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

/// Returns the number of weight rows that are multiplied together: more rows load activations from a farther cache
/// less often; fewer rows keep all threads busy.
fn width_of_panels(outputs: usize) -> usize {
    const LEAST: usize = 32;
    let fair = outputs.div_ceil(4 * rayon::current_num_threads());
    fair.next_multiple_of(SIDE).clamp(LEAST, PANEL)
}

/// Rows of `[T, n]` as pieces of `width` columns: of each piece a slice for each row.
pub fn cut<'v>(rows: impl IntoIterator<Item = &'v mut [f32]>, width: usize) -> Vec<Vec<&'v mut [f32]>> {
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
    /// Steps of a group.
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

    /// Takes these rows in the place of those it has.
    fn take(&mut self, w: &impl RowSource, rows: Range<usize>, scratch: &mut [f32]) {
        self.len = w.columns().div_ceil(LANES);
        self.steps.resize(rows.len().div_ceil(SIDE) * self.len, LaneColumns::default());
        for (place, row) in rows.enumerate() {
            let group = &mut self.steps[place / SIDE * self.len..][..self.len];
            put(w.row(row, scratch), place % SIDE, group);
        }
    }

    /// The products with `weights`, which are as long, at `values[row][weight]`.
    fn times(&self, kernel: Kernel, blocks: PartialSums, weights: &Self, values: &mut [&mut [f32]]) {
        let mut sums = PanelSums::default();
        let steps = if blocks == PartialSums::Cut { STEPS } else { self.len };
        for block in (0..self.len).step_by(steps) {
            for (x, values) in self.steps.chunks(self.len).zip(values.chunks_mut(SIDE)) {
                let x = &x[block..self.len.min(block + steps)];
                (kernel.tiles)(&weights.steps[block..], self.len, x, &mut sums);
                for (values, sums) in values.iter_mut().zip(&sums) {
                    let places = values.iter_mut().zip(sums.as_flattened());
                    // Zeros that were never read are written in one page fault, not in two.
                    match block {
                        0 => places.for_each(|(value, sum)| *value = 0.0 + sum),
                        _ => places.for_each(|(value, sum)| *value += sum),
                    }
                }
            }
        }
    }
}

/// A row in its place of a group.
fn put(values: &[f32], place: usize, steps: &mut [LaneColumns]) {
    let (whole, rest) = values.as_chunks::<LANES>();
    steps.iter_mut().zip(whole).for_each(|(LaneColumns(step), lanes)| step[place] = *lanes);
    if let Some(LaneColumns(step)) = steps.get_mut(whole.len()) {
        step[place] = [0.0; LANES];
        step[place][..rest.len()].copy_from_slice(rest);
    }
}
