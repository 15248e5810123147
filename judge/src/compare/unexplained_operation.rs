//! An operation of a dump's engine whose result rounding does not explain, with its inputs.

use crate::checkpoint::Site;
use crate::compare::visible_keys::VisibleKeys;
use crate::exact::{self, Float, OperationVerdict};
use crate::ops::linear::exact::{IntegerProducts, products_that_explain};
use crate::tensor::Tensor;
use crate::view::View;

/// The dump's result of an operation, and our result from the same inputs.
#[derive(Debug)]
pub struct UnexplainedOperation {
    /// The site of the result.
    pub site: Site,
    /// Our engine's result, traced with the operation and its inputs.
    pub traced: Tensor,
    /// The result of the dump's engine.
    pub theirs: Vec<f64>,
    /// Scale of each value, if the dump stores 8-bit values with scales.
    pub(super) scales: Option<Vec<f64>>,
    pub(super) stored: Option<Float>,
    pub(super) is_double: bool,
    pub(super) sight: VisibleKeys,
}

impl UnexplainedOperation {
    /// Judges the dump's values against `computed`, another computation of the operation.
    pub fn judge(&self, computed: &Tensor, may_differ: bool) -> Option<OperationVerdict> {
        self.with(computed, |compared| exact::judge(compared, may_differ))
    }

    /// Returns the 8-bit integer products of `among` that explain the operation. `None` if the operation is
    /// not a product with unquantized weights.
    pub fn products_that_explain(&self, among: &[IntegerProducts]) -> Option<Vec<IntegerProducts>> {
        self.with(&self.traced, |compared| products_that_explain(compared, among))
    }

    /// Returns the indices of the values that rounding does not explain.
    pub fn beyond(&self) -> Vec<usize> {
        self.with(&self.traced, exact::unexplained)
    }

    /// Returns the dump's values, with NaN for entries without meaning, such as masked scores.
    pub fn meaningful(&self) -> Vec<f64> {
        self.meaningful_or(f64::NAN)
    }

    /// Returns the dump's values, with `hidden` for entries without meaning, such as masked scores.
    pub fn meaningful_or(&self, hidden: f64) -> Vec<f64> {
        let value = |(flat, &value)| if self.sees(flat) { value } else { hidden };
        self.theirs.iter().enumerate().map(value).collect()
    }

    fn sees(&self, flat: usize) -> bool {
        self.sight.sees(self.site.point, self.traced.shape(), flat)
    }

    fn with<R>(&self, computed: &Tensor, judge: impl FnOnce(&exact::ResultPair) -> R) -> R {
        let theirs = View::of(computed.shape(), &self.theirs);
        let scaled = self.scales.as_ref().map(|scales| {
            let codes = self.theirs.iter().zip(scales).map(|(value, scale)| value / scale).collect();
            View::owned(computed.shape(), codes).scaled(View::of(computed.shape(), scales))
        });
        judge(&exact::ResultPair {
            traced: computed,
            sides: [scaled.as_ref().unwrap_or(&theirs), &View::from(computed)],
            stored: self.stored,
            is_double: self.is_double,
            sees: &|row| self.sight.range(self.site.point, computed.shape(), row),
        })
    }
}
