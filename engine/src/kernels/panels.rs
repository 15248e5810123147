//! Parallel matrix products with any summation order.

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
pub(crate) fn panels(
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

/// Transposes `[outputs, tokens]` to `[tokens, outputs]` in place. The data is small enough for a cache.
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
