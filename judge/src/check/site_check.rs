//! The check of one site: compares the aligned values of both sides and makes one record.

use crate::align::{RecordedRows, VisibleKeys};
use crate::checkpoint::{Point, Site, ValueKind};
use crate::exact::{self, Float, OperationVerdict, ResultPair};
use crate::measure::{
    Agreement, ColumnSelection, Distribution, Measurement, Tops, ValuePrecision, measure, measure_tokens,
};
use crate::ops::linear::exact::{IntegerProducts, products_that_explain};
use crate::tensor::Tensor;
use crate::view::View;
use std::ops::Range;

use crate::check::choice_margins::{DraftToken, Preference};
use crate::check::logprobs::{measure_experts, measure_ids};
use crate::check::rounding_evaluation::RoundingEvaluation;
use crate::check::rules::Role;
use crate::check::uniform_distribution::UniformErrors;

/// The record of one site, in one run of our engine or between two dumps.
#[derive(Debug)]
pub struct SiteCheck {
    /// The tap, the layer and the pass.
    pub site: Site,
    /// The positions that were compared, or should have been.
    pub(crate) positions: Range<usize>,
    /// The comparison. `None` if the site was not compared.
    pub found: Option<ArrayComparison>,
    /// A message about the missing values of a site that should have been compared.
    pub(crate) missing: Option<String>,
    /// The compared rows, if a dump does not record all rows.
    pub(crate) recorded: Option<RecordedRows>,
    /// Rounding evaluation of both sides, if evaluated.
    pub(crate) explained: Option<RoundingEvaluation>,
    /// The errors that a uniform distribution would have instead of the candidate's.
    pub(crate) uniform: Option<UniformErrors>,
    /// For a choice, the margin by which our logits prefer our token to the dump's (`argmax`), or a token that one side
    /// does not list to a listed one (`top_ids`).
    pub(crate) margin: Option<f64>,
    /// The preference of the router for its choice of experts.
    pub(crate) preference: Option<Preference>,
    /// The draft token of the pass for which our engine prefers another token by the largest margin.
    pub(crate) draft: Option<DraftToken>,
    /// The distribution of errors, if requested.
    pub(crate) distribution: Option<Distribution>,
    /// The operation of the dump's engine, if rounding does not explain it.
    pub(crate) unexplained: Option<UnexplainedOperation>,
}

impl SiteCheck {
    /// Makes the record of a site that was not compared.
    pub(crate) fn new(site: Site, positions: Range<usize>) -> Self {
        Self {
            site,
            positions,
            found: None,
            missing: None,
            recorded: None,
            explained: None,
            uniform: None,
            margin: None,
            preference: None,
            draft: None,
            distribution: None,
            unexplained: None,
        }
    }

    /// Evaluates whether rounding explains both sides of an operation, the dump's values first. `may_differ` is true if the
    /// dump's engine may round differently than its profile states. An operation whose results rounding does not explain
    /// is kept if `has_room` is true for its number of values.
    pub(crate) fn evaluate(
        &mut self,
        compared: &ResultPair,
        visible: VisibleKeys,
        role: Role,
        may_differ: bool,
        has_room: impl FnOnce(usize) -> bool,
    ) {
        let (site, [dumped, own]) = (self.site, compared.sides);
        let Some(judged) = exact::judge(compared, may_differ) else { return };
        if let Some(ArrayComparison::Measured(Measurement { agreement: Some(agreement), .. })) =
            &mut self.found
        {
            let is_wrong = site.point.is_of_named_ids() && judged.dump.over > 0;
            let over = if is_wrong { exact::unexplained(compared) } else { Vec::new() };
            agreement.mark_over(&over, own.shape().get(1).copied().unwrap_or(1));
        }
        if !judged.dump.is_explained() && has_room(dumped.len()) {
            self.unexplained = Some(UnexplainedOperation {
                site,
                traced: compared.traced.clone(),
                theirs: dumped.to_vec(),
                scales: dumped.scales().map(View::to_vec),
                stored: compared.stored,
                is_double: compared.is_double,
                visible,
            });
        }
        self.explained = Some(RoundingEvaluation::new(judged, role, own.shape()));
    }
}

/// The aligned values of a site on both sides: equal shapes, and the same order of heads and experts.
pub(crate) struct ValuePair<'v> {
    pub(crate) site: Site,
    pub(crate) candidate: View<'v>,
    pub(crate) reference: View<'v>,
    /// The types of both sides' values.
    pub(crate) precision: ValuePrecision,
    /// The rows that both sides record.
    pub(crate) rows: Vec<usize>,
}

impl<'v> ValuePair<'v> {
    pub(crate) fn side(&self, role: Role) -> &View<'v> {
        match role {
            Role::Candidate => &self.candidate,
            Role::Reference => &self.reference,
        }
    }

    /// Measures the errors in the given columns of each row. `same_top` returns true if both sides have the
    /// same most likely token in a row, if known.
    pub(crate) fn measure(
        &self,
        columns: impl Fn(usize) -> ColumnSelection + Sync,
        same_top: impl Fn(usize) -> Option<bool>,
    ) -> Measurement {
        let (candidate, reference) = (&self.candidate, &self.reference);
        match (self.site.point, self.site.point.kind()) {
            (Point::TopIds, _) => measure_ids(candidate, reference, &self.rows),
            (Point::Experts, _) => measure_experts(candidate, reference, &self.rows),
            (_, ValueKind::Token) => measure_tokens(candidate.clone(), reference.clone()),
            (point, ValueKind::Real) => {
                let mut found = measure(candidate.clone(), reference.clone(), self.precision, columns);
                found.agreement = self.agreement(found.is_identical(), same_top);
                if point == Point::LastLogits {
                    found.tops = Tops::of(candidate, reference).map(Box::new);
                }
                found
            }
        }
    }

    /// Compares the predictions of both sides at each position: for log-probabilities, and for logits that
    /// differ.
    fn agreement(&self, is_identical: bool, same_top: impl Fn(usize) -> Option<bool>) -> Option<Agreement> {
        let Self { candidate, reference, rows, precision, .. } = self;
        match self.site.point {
            Point::Logits if !is_identical => Some(Agreement::of_logits(candidate, reference, rows)),
            point if point.is_of_named_ids() => {
                let all = |_| ColumnSelection::All;
                Some(Agreement::of(candidate, reference, rows, *precision, all, same_top))
            }
            _ => None,
        }
    }
}

/// Returns the relative error between two arrays, or 0 if their shapes differ. Used to find out whether both sides
/// have the same order of heads.
pub(crate) fn distance(one: View, other: View) -> f64 {
    match one.shape() == other.shape() {
        true => measure(one, other, ValuePrecision::F32, |_| ColumnSelection::All).errors.rel_l2,
        false => 0.0,
    }
}

/// Returns true for taps of logits, which are also compared as probabilities.
pub(crate) fn is_of_logits(point: Point) -> bool {
    matches!(point, Point::Logits | Point::LastLogits)
}

/// The result of comparing the arrays of a site.
#[derive(Clone, Debug, PartialEq)]
pub enum ArrayComparison {
    /// Both sides were compared.
    Measured(Measurement),
    /// The lengths differ, e.g. of a cache. This is a divergence.
    OtherLength(String),
    /// The values cannot be aligned, because the order of heads or experts is unknown.
    Unaligned(String),
}

/// The dump's result of an operation, and our result from the same inputs.
#[derive(Clone, Debug)]
pub(crate) struct UnexplainedOperation {
    /// The site of the result.
    pub(crate) site: Site,
    /// Our engine's result, traced with the operation and its inputs.
    pub(crate) traced: Tensor,
    /// The result of the dump's engine.
    pub(crate) theirs: Vec<f64>,
    /// Scale of each value, if the dump stores 8-bit values with scales.
    pub(crate) scales: Option<Vec<f64>>,
    pub(crate) stored: Option<Float>,
    pub(crate) is_double: bool,
    pub(crate) visible: VisibleKeys,
}

impl UnexplainedOperation {
    /// Judges the dump's values against `computed`, another computation of the operation.
    pub fn judge(&self, computed: &Tensor, may_differ: bool) -> Option<OperationVerdict> {
        self.with(computed, |compared| exact::judge(compared, may_differ))
    }

    /// Returns the 8-bit integer products of `among` that explain the operation. `None` if the operation is
    /// not a product with unquantized weights.
    pub(crate) fn products_that_explain(&self, among: &[IntegerProducts]) -> Option<Vec<IntegerProducts>> {
        self.with(&self.traced, |compared| products_that_explain(compared, among))
    }

    /// Returns the indices of the values that rounding does not explain.
    pub(crate) fn beyond(&self) -> Vec<usize> {
        self.with(&self.traced, exact::unexplained)
    }

    /// Returns the dump's values, with NaN for entries without meaning, such as masked scores.
    pub(crate) fn meaningful(&self) -> Vec<f64> {
        self.meaningful_or(f64::NAN)
    }

    /// Returns the dump's values, with `hidden` for entries without meaning, such as masked scores.
    pub(crate) fn meaningful_or(&self, hidden: f64) -> Vec<f64> {
        let value = |(flat, &value)| if self.sees(flat) { value } else { hidden };
        self.theirs.iter().enumerate().map(value).collect()
    }

    fn sees(&self, flat: usize) -> bool {
        self.visible.sees(self.site.point, self.traced.shape(), flat)
    }

    fn with<R>(&self, computed: &Tensor, judge: impl FnOnce(&ResultPair) -> R) -> R {
        let theirs = View::of(computed.shape(), &self.theirs);
        let scaled = self.scales.as_ref().map(|scales| {
            let codes = self.theirs.iter().zip(scales).map(|(value, scale)| value / scale).collect();
            View::owned(computed.shape(), codes).scaled(View::of(computed.shape(), scales))
        });
        judge(&ResultPair {
            traced: computed,
            sides: [scaled.as_ref().unwrap_or(&theirs), &View::from(computed)],
            stored: self.stored,
            is_double: self.is_double,
            sees: &|row| self.visible.range(self.site.point, computed.shape(), row),
        })
    }
}
