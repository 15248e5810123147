//! Dot products and matrix products.

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

/// The product of `tokens` activation rows with a matrix of `outputs` rows, as `[tokens, outputs]`.
///
/// `fill(output, column)` writes the dot products of matrix row `output` with every token: a weight row is
/// decoded once, whatever the number of tokens. Matrix rows run in parallel; each value is computed by one
/// thread, so the result does not depend on their number.
pub fn product(tokens: usize, outputs: usize, fill: impl Fn(usize, &mut [f32]) + Sync) -> Tensor {
    let mut columns = vec![0.0f32; tokens * outputs];
    columns.par_chunks_mut(tokens).enumerate().for_each(|(output, column)| fill(output, column));
    Tensor::new(&[tokens, outputs], transpose(&columns, outputs, tokens))
}

/// `[rows, cols]` to `[cols, rows]`.
fn transpose(data: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    if cols == 1 {
        return data.to_vec();
    }
    (0..rows * cols).map(|index| data[index % rows * cols + index / rows]).collect()
}

/// `f(a, b)`, element by element.
///
/// # Panics
/// If the shapes differ.
pub fn zip(a: &Tensor, b: &Tensor, f: impl Fn(f32, f32) -> f32) -> Tensor {
    assert_eq!(a.shape(), b.shape(), "only tensors of one shape go together");
    let values = a.data().iter().zip(b.data()).map(|(&a, &b)| f(a, b)).collect();
    Tensor::new(a.shape(), values)
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
