//! Embedding: the row of each token in a table, `[V, d]` and T token ids to `[T, d]`.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::quant::decode_matrix_row;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Looks up the rows of tokens in a table, decoded to `f32`: `[T, d]`.
///
/// # Panics
/// If a token id is not below the number of rows.
pub(crate) fn embed(table: &Matrix, tokens: &[u32]) -> Tensor {
    Tensor::from_rows(tokens.len(), table.cols, |token, out| {
        decode_matrix_row(table, tokens[token] as usize, out);
    })
}
