//! Parallel matrix products with any summation order, and elementwise operations.

use std::ops::Range;

use crate::parallel;
use crate::tensor::Tensor;

/// Number of matrix rows that one thread takes at a time.
const PANEL: usize = 32;

/// Computes the product of `tokens` activation rows with a matrix of `outputs` rows and `inputs` columns: `[tokens,
/// outputs]`.
///
/// `fill(outputs, columns)` writes the dot products of some matrix rows with every token, row after row. Matrix rows
/// run in parallel; each value is computed by one thread, so the result does not depend on the number of threads.
pub fn panels(
    tokens: usize,
    outputs: usize,
    inputs: usize,
    fill: impl Fn(Range<usize>, &mut [f32]) + Sync,
) -> Tensor {
    let mut panels = vec![0.0f32; tokens * outputs];
    let len = PANEL * tokens;
    parallel::chunks(&mut panels, len, len * inputs / parallel::PRODUCTS, |panel, values| {
        let first = panel * PANEL;
        fill(first..first + values.len() / tokens, values);
        transpose(values, tokens);
    });
    match tokens {
        1 => Tensor::new(&[1, outputs], panels),
        _ => joined(&panels, tokens, outputs),
    }
}

/// Transposes `[outputs, tokens]` to `[tokens, outputs]` in place; small enough for a cache.
fn transpose(values: &mut [f32], tokens: usize) {
    if tokens == 1 {
        return;
    }
    let (columns, outputs) = (values.to_vec(), values.len() / tokens);
    for (token, row) in values.chunks_mut(outputs).enumerate() {
        row.iter_mut().zip(columns.chunks(tokens)).for_each(|(value, column)| *value = column[token]);
    }
}

/// Concatenates panels of `[tokens, PANEL]`.
fn joined(panels: &[f32], tokens: usize, outputs: usize) -> Tensor {
    Tensor::from_rows(tokens, outputs, |token, row| {
        for (out, panel) in row.chunks_mut(PANEL).zip(panels.chunks(PANEL * tokens)) {
            out.copy_from_slice(&panel[token * out.len()..][..out.len()]);
        }
    })
}

/// Number of values that one thread takes at a time.
const PIECE: usize = 4096;

/// Computes `f(a, b)`, element by element.
///
/// # Panics
/// If the shapes differ.
pub fn zip(a: &Tensor, b: &Tensor, f: impl Fn(f32, f32) -> f32 + Sync) -> Tensor {
    assert_eq!(a.shape(), b.shape(), "only tensors of one shape go together");
    let mut data = vec![0.0; a.data().len()];
    parallel::chunks(&mut data, PIECE, PIECE, |piece, out| {
        let values = a.data()[piece * PIECE..].iter().zip(&b.data()[piece * PIECE..]);
        out.iter_mut().zip(values).for_each(|(out, (&a, &b))| *out = f(a, b));
    });
    Tensor::new(a.shape(), data)
}

/// Applies `f` to pieces of `x`; it writes as many values as it reads.
pub fn piecewise(x: &Tensor, f: impl Fn(&[f32], &mut [f32]) + Sync) -> Tensor {
    let mut data = vec![0.0; x.data().len()];
    parallel::chunks(&mut data, PIECE, PIECE, |piece, out| f(&x.data()[piece * PIECE..][..out.len()], out));
    Tensor::new(x.shape(), data)
}

/// Computes `f(x, v)` for every value of every row, where the rows of `x` are as long as `v`.
///
/// # Panics
/// If the number of values is not a multiple of the row length.
pub fn per_column(x: Tensor, v: impl IntoIterator<Item = f32>, f: impl Fn(f32, f32) -> f32 + Sync) -> Tensor {
    let (shape, v) = (x.shape().to_vec(), v.into_iter().collect::<Vec<_>>());
    assert!(x.data().len().is_multiple_of(v.len()), "rows of {} in {shape:?}", v.len());
    let mut data = x.into_data();
    parallel::chunks(&mut data, v.len(), v.len(), |_, row| {
        row.iter_mut().zip(&v).for_each(|(x, &v)| *x = f(*x, v));
    });
    Tensor::new(&shape, data)
}
