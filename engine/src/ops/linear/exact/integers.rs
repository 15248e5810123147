//! Exact evaluation of integer products. Integer sums are exact in any order, so the results of our own kernel are
//! used.
//!
//! Activations are quantised to 8 bits with one scale for each token or group. Scales are applied last, or for each
//! group. Only the scales, the sum over groups, and codes of uncertain inputs can differ by rounding.

use crate::exact::input::InputTensor;
use crate::exact::operation::by_row;
use crate::exact::value::{K, U};
use crate::exact::{ExactValue, LAMBDA, Operation, Profile};
use crate::tensor::Tensor;
use crate::weight::{Factor, Matrix};

/// Product of a kernel with integer codes: `x`, `[T, cols]` to `[T, rows]`.
pub struct Integers {
    /// `[T, cols]`
    pub x: Tensor,
    /// `[rows, cols]`
    pub(crate) w: Matrix,
    /// A scale stored with the matrix, if it has one.
    pub(crate) factor: Option<Factor>,
    /// `[T, rows]`
    pub(crate) products: Tensor,
    /// Number of terms that are summed in floating point.
    pub(crate) terms: usize,
}

impl Operation for Integers {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let rows = self.products.row_len();
        let x = InputTensor::of(&self.x, profile);
        let of_token = |flat: &[usize]| {
            let token = flat[0] / rows;
            let row = self.products.row(token);
            let size = rms(row.iter().map(|&y| f64::from(y)));
            let from_input = self.unsure_codes(&x, token) * size;
            let one = |&flat: &usize| {
                let value = f64::from(row[flat % rows]);
                let sums = K
                    * U
                    * (self.terms as f64 / 2.0 + 4.0).sqrt()
                    * value.abs().max(if self.terms > 1 { size } else { 0.0 });
                // If results have a short type, each scale has, too.
                let scales = if profile.results == super::Float::F32 {
                    0.0
                } else {
                    2.0 * profile.results.unit() * value.abs()
                };
                ExactValue::statistical(value, sums)
                    .moved(scales / 2.0, scales)
                    .moved(from_input, LAMBDA * from_input)
            };
            flat.iter().map(one).collect::<Vec<_>>()
        };
        by_row(wanted, rows).flat_map(of_token).collect()
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}

impl Integers {
    /// Returns the error from activation codes that engines may round either way, relative to the token's products.
    fn unsure_codes(&self, x: &InputTensor, token: usize) -> f64 {
        let n = self.x.row_len();
        let x = x.part(token * n, n);
        let Some(doubt) = &x.doubt else { return 0.0 };
        let largest = x.values.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let step = largest / 127.0;
        let unsure = doubt.radius.iter().zip(&x.values).map(|(radius, x)| {
            let moves = ((x + radius) / step).round() - ((x - radius) / step).round();
            (moves * step / 2.0).powi(2)
        });
        let size = rms(x.values.iter().copied());
        if size > 0.0 { (unsure.sum::<f64>() / n as f64).sqrt() / size } else { 0.0 }
    }
}

fn rms(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len().max(1) as f64;
    (values.map(|x| x * x).sum::<f64>() / n).sqrt()
}
