//! Exact evaluation of the L2 norm. As in RMSNorm, the error of the sum of squares is shared by all values of a row.

use crate::exact::dot::total;
use crate::exact::input::InputTensor;
use crate::exact::operation::{per_row, rows_around};
use crate::exact::value::{K, U, both, lost};
use crate::exact::{ExactValue, Float, LAMBDA, Operation, Profile};
use crate::ops::l2_norm::L2Norm;
use crate::tensor::Tensor;

/// L2 norm along the last axis.
pub(crate) struct L2Normalisation {
    /// Rows, in a tensor with any number of axes.
    pub(crate) x: Tensor,
    /// Width and epsilon.
    pub(crate) norm: L2Norm,
}

impl Operation for L2Normalisation {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (width, eps) = (self.norm.width, f64::from(self.norm.eps));
        let x = InputTensor::of_part(&self.x, profile, rows_around(wanted, width));
        per_row(wanted, width, |flats, exacts| {
            let first = flats[0] / width * width;
            let row = x.part(first, width);
            let squares: Vec<f64> = row.values.iter().map(|x| x * x).collect();
            let sum = total(&squares);
            let divisor = if self.norm.is_least { sum.sqrt().max(eps) } else { (sum + eps).sqrt() };
            let n = width as f64;
            let shared = K * U * ((n / 3.0).sqrt() / 2.0 + 1.5);
            let lost = if sum > 0.0 { lost(squares.into_iter(), sum) / 2.0 } else { 0.0 };
            // Uncertain values make the divisor uncertain.
            let doubt = row.doubt.as_ref().map_or(0.0, |doubt| {
                let terms = row.values.iter().zip(&doubt.sigma);
                terms.map(|(x, sigma)| (x * sigma).powi(2)).sum::<f64>().sqrt() / (divisor * divisor)
            });
            exacts.extend(flats.iter().map(|&flat| {
                let x = row.get(flat - first);
                let value = x.value / divisor;
                let size = value.abs() + x.radius / divisor;
                let own = size * (shared * shared + 2.0 * (K * U).powi(2)).sqrt();
                let inherited = both(x.sigma / divisor, size * doubt);
                let most = x.radius / divisor + LAMBDA * size * doubt;
                ExactValue::statistical(value, own)
                    .losing(lost * size)
                    .within((n / 2.0 + 4.0) * U * size)
                    .moved(inherited, (LAMBDA * inherited).min(most))
            }));
        })
    }

    fn results(&self, profile: &Profile) -> Float {
        profile.chunk_products
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}
