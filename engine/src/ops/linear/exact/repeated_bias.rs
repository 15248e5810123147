//! Exact evaluation of a product whose bias is added several times, once by each device of tensor parallelism.

use crate::exact::{Choice, ExactValue, Float, Operation, Profile};
use crate::ops::linear::exact::{Linear, reduced, with_bias};
use crate::tensor::Tensor;

/// `x · wᵀ + n · bias`, `[T, cols]` to `[T, rows]`.
pub(crate) struct RepeatedBias {
    /// The product without its bias.
    pub(crate) product: Linear,
    /// `[rows]`
    pub(crate) bias: Vec<f32>,
    /// Number of times that the bias is added, at least 1.
    pub(crate) times: usize,
}

impl Operation for RepeatedBias {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (Some(&first), Some(&last)) = (wanted.first(), wanted.last()) else { return Vec::new() };
        let (rows, profile) = (self.product.w.rows, &profile.of_product(&self.product.w));
        let tokens = self.product.operands(profile, first / rows..last / rows + 1);
        self.product.by_output(profile, &tokens, wanted, |row, x, output| {
            let bias = profile.weights.round(self.bias[output].into());
            // Each device adds the bias to its part of the sum, or the bias is added to the complete sum. Columns with outliers
            // belong to no part.
            if profile.parts != self.times || x.outliers.is_some() {
                return self.over_all(row.times(x, None, profile), bias, profile);
            }
            let width = self.product.w.cols.div_ceil(profile.parts);
            let sums = row.parts(width, x, profile).map(|sum| sum.biased(bias, width as f64));
            reduced(&sums.collect::<Vec<_>>(), profile.results)
        })
    }

    fn is_light(&self) -> bool {
        false
    }

    fn choices(&self) -> &'static [Choice] {
        self.product.choices()
    }

    fn inputs(&self) -> Vec<&Tensor> {
        self.product.inputs()
    }
}

impl RepeatedBias {
    /// Adds the bias to a complete sum: all multiples at once, or one after the other with rounding after each.
    fn over_all(&self, sum: ExactValue, bias: f64, profile: &Profile) -> ExactValue {
        let (columns, n) = (self.product.w.cols, self.times as f64);
        let at_once = with_bias(sum, n * bias, columns, profile);
        let again =
            |first: ExactValue| (1..self.times).fold(first, |sum, _| sum.rounded(profile.results).plus(bias));
        let fused = again(with_bias(sum, bias, columns, &Profile { biased: Float::F32, ..*profile }));
        let separate = again(sum.rounded(profile.results).plus(bias));
        at_once.or(fused).or(separate)
    }
}
