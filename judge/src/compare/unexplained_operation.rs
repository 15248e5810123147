//! An operation of a dump's engine that rounding does not explain, with its inputs.

use crate::checkpoint::Site;
use crate::compare::visible_keys::VisibleKeys;
use crate::exact::{self, Float, IntegerProducts, OperationVerdict};
use crate::tensor::Tensor;
use crate::view::View;

/// The result of an operation by the dump's engine, next to ours from the same inputs.
#[derive(Debug)]
pub struct UnexplainedOperation {
    /// The site.
    pub site: Site,
    /// Our engine's result, with the operation and its inputs.
    pub traced: Tensor,
    /// The result of the dump's engine.
    pub theirs: Vec<f64>,
    /// Scale factor of each value, if the values were scaled when read.
    pub(super) scales: Option<Vec<f64>>,
    pub(super) stored: Option<Float>,
    pub(super) is_double: bool,
    pub(super) sight: VisibleKeys,
}

impl UnexplainedOperation {
    /// Judges the dump's values against an operation computed like `computed`.
    pub fn judge(&self, computed: &Tensor, may_differ: bool) -> Option<OperationVerdict> {
        self.with(computed, |compared| exact::judge(compared, may_differ))
    }

    /// The ways to multiply with activations of 8-bit integers that explain it; `None` if it is no product with plain weights.
    pub fn products_that_explain(&self, among: &[IntegerProducts]) -> Option<Vec<IntegerProducts>> {
        self.with(&self.traced, |compared| exact::products_that_explain(compared, among))
    }

    /// Returns the values that rounding does not explain.
    pub fn beyond(&self) -> Vec<usize> {
        self.with(&self.traced, exact::unexplained)
    }

    /// Returns the values of the dump's engine, with NaN for entries without a meaning.
    pub fn meaningful(&self) -> Vec<f64> {
        self.meaningful_or(f64::NAN)
    }

    /// Returns the values of the dump's engine, with `hidden` for entries without a meaning.
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
