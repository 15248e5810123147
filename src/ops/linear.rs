//! Dot products and matrix products.

use std::ops::Range;

use rayon::prelude::*;

use crate::tensor::Tensor;

/// Partial sums of a dot product. Independent lanes let the compiler vectorise, and keep the rounding error
/// of long rows small.
const LANES: usize = 32;

/// `Σ a[i] · b[i]` in `f32`.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sum_lanes(lanes) + rest
}

/// Adds the lanes pairwise, so that each takes part in few roundings.
fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

/// Matrix rows that one thread takes at a time.
const PANEL: usize = 32;

/// The product of `tokens` activation rows with a matrix of `outputs` rows, as `[tokens, outputs]`.
///
/// `fill(output, column)` writes the dot products of matrix row `output` with every token: a weight row is
/// decoded once, whatever the number of tokens. Matrix rows run in parallel; each value is computed by one
/// thread, so the result does not depend on their number.
pub fn product(tokens: usize, outputs: usize, fill: impl Fn(usize, &mut [f32]) + Sync) -> Tensor {
    panels(tokens, outputs, |outputs, columns| {
        outputs.zip(columns.chunks_mut(tokens)).for_each(|(output, column)| fill(output, column));
    })
}

/// The same for code that takes several matrix rows at once: `fill(outputs, columns)` writes the columns of all of
/// them, one behind the other.
pub fn panels(tokens: usize, outputs: usize, fill: impl Fn(Range<usize>, &mut [f32]) + Sync) -> Tensor {
    let mut panels = vec![0.0f32; tokens * outputs];
    panels.par_chunks_mut(PANEL * tokens).enumerate().for_each(|(panel, values)| {
        let first = panel * PANEL;
        fill(first..first + values.len() / tokens, values);
        transpose(values, tokens);
    });
    match tokens {
        1 => Tensor::new(&[1, outputs], panels),
        _ => joined(&panels, tokens, outputs),
    }
}

/// `[outputs, tokens]` to `[tokens, outputs]`, in place: small enough to stay in a cache.
fn transpose(values: &mut [f32], tokens: usize) {
    if tokens == 1 {
        return;
    }
    let (columns, outputs) = (values.to_vec(), values.len() / tokens);
    for (token, row) in values.chunks_mut(outputs).enumerate() {
        row.iter_mut().zip(columns.chunks(tokens)).for_each(|(value, column)| *value = column[token]);
    }
}

/// Panels of `[tokens, PANEL]` side by side.
fn joined(panels: &[f32], tokens: usize, outputs: usize) -> Tensor {
    Tensor::from_rows(tokens, outputs, |token, row| {
        for (out, panel) in row.chunks_mut(PANEL).zip(panels.chunks(PANEL * tokens)) {
            out.copy_from_slice(&panel[token * out.len()..][..out.len()]);
        }
    })
}

/// Values that one thread takes at a time.
const PIECE: usize = 4096;

/// `f(a, b)`, element by element.
///
/// # Panics
/// If the shapes differ.
pub fn zip(a: &Tensor, b: &Tensor, f: impl Fn(f32, f32) -> f32 + Sync) -> Tensor {
    assert_eq!(a.shape(), b.shape(), "only tensors of one shape go together");
    let pairs = a.data().par_iter().zip(b.data()).with_min_len(PIECE);
    Tensor::new(a.shape(), pairs.map(|(&a, &b)| f(a, b)).collect())
}

/// `f(x, v)` for every value of every row, where the rows of `x` are as long as `v`.
///
/// # Panics
/// If the last axis is not cut into whole rows.
pub fn per_column(x: Tensor, v: impl IntoIterator<Item = f32>, f: impl Fn(f32, f32) -> f32) -> Tensor {
    let (shape, v) = (x.shape().to_vec(), v.into_iter().collect::<Vec<_>>());
    assert!(x.data().len().is_multiple_of(v.len()), "rows of {} in {shape:?}", v.len());
    let mut data = x.into_data();
    for row in data.chunks_mut(v.len()) {
        row.iter_mut().zip(&v).for_each(|(x, &v)| *x = f(*x, v));
    }
    Tensor::new(&shape, data)
}
