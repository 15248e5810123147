//! Matrix products in whatever order of sums, and what is done value by value.

use std::ops::Range;

use rayon::prelude::*;

use crate::tensor::Tensor;

/// Matrix rows that one thread takes at a time.
const PANEL: usize = 32;

/// The product of `tokens` activation rows with a matrix of `outputs` rows, as `[tokens, outputs]`.
///
/// `fill(outputs, columns)` writes the dot products of some matrix rows with every token, one behind the other. Matrix
/// rows run in parallel; each value is computed by one thread, so the result does not depend on their number.
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
    let mut data = vec![0.0; a.data().len()];
    let pieces = data.par_chunks_mut(PIECE).zip(a.data().par_chunks(PIECE)).zip(b.data().par_chunks(PIECE));
    pieces.for_each(|((out, a), b)| {
        out.iter_mut().zip(a).zip(b).for_each(|((out, &a), &b)| *out = f(a, b));
    });
    Tensor::new(a.shape(), data)
}

/// `f` of pieces of `x`, which writes as many values as it gets.
pub fn piecewise(x: &Tensor, f: impl Fn(&[f32], &mut [f32]) + Sync) -> Tensor {
    let mut data = vec![0.0; x.data().len()];
    data.par_chunks_mut(PIECE).zip(x.data().par_chunks(PIECE)).for_each(|(out, x)| f(x, out));
    Tensor::new(x.shape(), data)
}

/// `f(x, v)` for every value of every row, where the rows of `x` are as long as `v`.
///
/// # Panics
/// If the last axis is not cut into whole rows.
pub fn per_column(x: Tensor, v: impl IntoIterator<Item = f32>, f: impl Fn(f32, f32) -> f32 + Sync) -> Tensor {
    let (shape, v) = (x.shape().to_vec(), v.into_iter().collect::<Vec<_>>());
    assert!(x.data().len().is_multiple_of(v.len()), "rows of {} in {shape:?}", v.len());
    let mut data = x.into_data();
    data.par_chunks_mut(v.len()).with_min_len(PIECE.div_ceil(v.len())).for_each(|row| {
        row.iter_mut().zip(&v).for_each(|(x, &v)| *x = f(*x, v));
    });
    Tensor::new(&shape, data)
}
