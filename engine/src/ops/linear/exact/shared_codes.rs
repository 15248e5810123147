//! Properties of activation codes that all rows of a product share: the scale of a pass or a matrix, and the
//! columns with outliers.

use crate::exact::Profile;
use crate::exact::input::{InputTensor, InputValues};
use crate::exact::operand::{CodeRange, Operand, ValueRange};
use crate::quant::CodeGroup;
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};

/// Codes of the activations of a product.
pub(crate) struct SharedCodes {
    /// Profile of the product.
    profile: Profile,
    /// Type of the weights.
    weights: DType,
    range: Option<CodeRange>,
    /// True for each column with an outlier; `None` if outliers are quantised.
    outliers: Option<Vec<bool>>,
}

impl SharedCodes {
    /// Finds the properties that `rows` of `x`, the activations of a product with `w`, share. `read` returns the
    /// evaluated values of `x`.
    pub(crate) fn of(
        x: &Tensor,
        read: &InputTensor,
        rows: impl Iterator<Item = usize> + Clone,
        w: &Matrix,
        profile: &Profile,
    ) -> Self {
        let (profile, width) = (profile.of_product(w), w.cols);
        let flats = |row: usize| row * width..(row + 1) * width;
        let all = || ValueRange::of(rows.clone().flat_map(flats).map(|flat| read.get(flat)));
        let range = match profile.activation_codes.map(|codes| codes.group) {
            Some(CodeGroup::Pass) => Some(CodeRange::Values(all())),
            Some(CodeGroup::Matrix) => w.input_scale().map(CodeRange::Stored),
            _ => None,
        };
        let values = rows.clone().map(|row| &x.data()[flats(row)]);
        let outliers = profile.activation_codes.and_then(|codes| codes.outlier_columns(values, width));
        Self { profile, weights: w.dtype, range, outliers }
    }

    /// Returns a row of activations as the product reads it.
    pub(crate) fn operand(&self, row: InputValues) -> Operand {
        match (&self.profile.activation_codes, &self.outliers) {
            (Some(codes), Some(columns)) => Operand::with_outliers(&row, codes, columns),
            _ => Operand::new(row, &self.profile, self.weights, self.range),
        }
    }
}
