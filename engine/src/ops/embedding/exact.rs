//! Exact evaluation of embedding lookups.

use crate::exact::operation::by_row;
use crate::exact::value::U;
use crate::exact::{ExactValue, Float, Operation, Profile};
use crate::quant::{self, decode_matrix_row};
use crate::weight::Matrix;

/// Rows looked up in an embedding table.
pub(crate) struct EmbeddingLookup {
    /// `[V, d]`
    pub(crate) table: Matrix,
    /// Token ids of the rows.
    pub(crate) tokens: Vec<u32>,
}

impl Operation for EmbeddingLookup {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let width = self.table.cols;
        let mut row = vec![0.0f32; width];
        let of_token = |flat: &[usize]| {
            let token = self.tokens[flat[0] / width] as usize;
            decode_matrix_row(&self.table, token, &mut row);
            let parts = quant::parts(self.table.dtype, self.table.row(token));
            let one = |&flat: &usize| {
                let at = flat % width;
                let value = profile.weights.round(row[at].into());
                // Subtracting a block's minimum adds one rounding, unless it is fused.
                let bound = parts
                    .as_ref()
                    .map_or(0.0, |[_, minima]| 2.0 * U * (value.abs() + 2.0 * minima[at].abs()));
                ExactValue::bounded(value, bound)
            };
            flat.iter().map(one).collect::<Vec<_>>()
        };
        by_row(wanted, width).flat_map(of_token).collect()
    }

    fn results(&self, profile: &Profile) -> Float {
        profile.stream()
    }

    fn is_certain(&self) -> bool {
        true
    }
}
