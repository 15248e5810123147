//! The result of a comparison as plain data for reports.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::change::CauseKind;
use crate::check::{Gate, Mode, Role};
use crate::checkpoint::{Checkpoint, Point, Site, ValueKind};
use crate::dump::Producer;
use crate::json_number;
use crate::measure::{Errors, Measurement, larger};
use crate::noise::NoiseFloor;
use crate::ops::linear::exact::IntegerProducts;
use crate::verdict::evidence::Basis;
use crate::verdict::finding::Finding;
use crate::verdict::site_result::{SiteResult, Verdict};

/// The compared and the expected numbers of taps, elements and rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// Tapped values that were compared.
    pub taps_compared: usize,
    /// Tapped values that the selection requests and the reference records.
    pub taps_expected: usize,
    /// Numbers that were compared.
    pub elements: usize,
    /// Bit-identical taps, in the run whose error is judged.
    pub taps_identical: usize,
    /// Bit-identical numbers, in the run whose error is judged.
    pub elements_identical: usize,
    /// Taps with only some rows recorded.
    #[serde(default)]
    pub taps_in_part: usize,
    /// Rows of all tapped values that were compared.
    #[serde(default)]
    pub rows: usize,
    /// Rows that those tapped values have in their passes.
    #[serde(default)]
    pub rows_expected: usize,
    /// The skipped sites with their reasons, one short sentence each.
    pub skipped: Vec<String>,
}

/// The two sides of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonSubject {
    /// The name of the dump: a shipped dump's name or a file name. With two dumps, the reference's name.
    pub name: String,
    /// Producer of the named dump.
    pub producer: Producer,
    /// Numerics of our engine; for two dumps, the producer of the candidate.
    pub numerics: String,
    /// Role of the dump.
    pub role: Role,
    /// True if the reference is a known case, which contains only tokens.
    pub is_case: bool,
    /// The criterion of the verdict.
    pub gate: Gate,
    /// The kinds of errors that were measured.
    pub mode: Mode,
}

/// The result of the comparison with one reference.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The two sides of the comparison.
    pub subject: ComparisonSubject,
    /// The verdict over all rows and the coverage.
    pub verdict: Verdict,
    /// The reason, one sentence, if the verdict is not a pass.
    pub reason: Option<String>,
    /// Facts that change no verdict, such as accumulated rounding and ties.
    pub notes: Vec<String>,
    /// Causes of failing rows, tested on the reference's own values. Few failures have a cause.
    pub findings: Vec<Finding>,
    /// Compared and expected amounts.
    pub coverage: Coverage,
    /// Every compared value, in data-flow order.
    pub rows: Vec<SiteResult>,
    /// The data from which the outcome was made.
    pub basis: Basis,
}

/// One checkpoint, summarized over all its taps, layers and passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CheckpointSummary {
    pub(crate) checkpoint: Checkpoint,
    /// Number of the checkpoint.
    pub(crate) number: usize,
    /// The worst verdict of the checkpoint's rows. Inconclusive if nothing was compared.
    pub(crate) verdict: Verdict,
    /// Local error: each statistic at its worst row. `None` if not measured.
    pub(crate) local: Option<Errors>,
    /// Accumulated error: each statistic at its worst row. `None` if not measured.
    pub(crate) accumulated: Option<Errors>,
    /// Largest ratio of an error to its error bound. `None` if not measured.
    #[serde(default, with = "json_number::optional")]
    pub(crate) bound_ratio: Option<f64>,
    /// Number of values above their error bound. `None` if no operation was evaluated.
    pub(crate) over: Option<usize>,
    /// Spec tolerance of the largest absolute error at the site.
    #[serde(default, with = "json_number::optional")]
    pub(crate) tolerance: Option<f64>,
    /// The site of the row with that verdict and the largest judged error. `None` if nothing was compared.
    #[serde(rename = "worst")]
    pub(crate) site: Option<Site>,
    /// True if the figures are those of the first divergence.
    #[serde(skip)]
    pub(crate) is_culprit: bool,
}

impl Outcome {
    /// Returns true if the dump is much nearer to this outcome's arithmetic than to the other's, so that the
    /// other is ruled out. Compares only values explained by perturbed runs.
    pub fn is_nearer_than(&self, other: &Self) -> bool {
        let by_floor = |row: &&SiteResult| {
            row.floor.is_some() && row.judged().is_some_and(|found| !found.is_identical())
        };
        let rel_l2 = |row: &SiteResult| row.judged().map(|found| found.errors.rel_l2);
        self.rows.iter().filter(by_floor).all(|row| {
            let others = other.rows.iter().find(|other| other.site == row.site).and_then(rel_l2);
            rel_l2(row).zip(others).is_some_and(|(own, others)| NoiseFloor::FAR * own <= others)
        })
    }

    /// Returns true if one operation computes each inexact value from recorded values.
    pub fn is_of_single_operations(&self) -> bool {
        let is_exact = |row: &SiteResult| row.judged().is_none_or(Measurement::is_identical);
        self.rows.iter().all(|row| row.is_single_operation() || is_exact(row))
    }

    /// Returns the taps that several operations computed from recorded values and that are not much nearer to this
    /// outcome's arithmetic than to the other's. Taps that both compute alike are left out.
    pub fn taps_as_near_to(&self, other: &Self) -> BTreeSet<Point> {
        let rel_l2 = |row: &SiteResult| row.judged().map(|found| found.errors.rel_l2);
        let is_open = |row: &&SiteResult| {
            let others = other.rows.iter().find(|other| other.site == row.site).and_then(rel_l2);
            let own = rel_l2(row);
            let is_far = own.zip(others).is_some_and(|(own, others)| NoiseFloor::FAR * own <= others);
            own != others && !is_far && !row.is_single_operation()
        };
        self.rows.iter().filter(is_open).map(|row| row.site.point).collect()
    }

    /// Returns true if at least half of the values explained only by perturbed runs are much nearer to this
    /// arithmetic than to the other. A single 16-bit value that rounds the other way does not count.
    pub fn is_mostly_nearer_than(&self, other: &Self) -> bool {
        let rel_l2 = |row: &SiteResult| row.judged().map(|found| found.errors.rel_l2);
        let pairs = self.rows.iter().filter(|row| row.floor.is_some()).filter_map(|row| {
            let others = other.rows.iter().find(|other| other.site == row.site)?;
            Some((rel_l2(row)?, rel_l2(others)?))
        });
        let (near, rest): (Vec<_>, Vec<_>) =
            pairs.partition(|(own, others)| NoiseFloor::FAR * own <= *others);
        near.len() >= rest.len()
    }

    /// Returns the first finding that names a cause.
    pub fn cause(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.kind.is_cause())
    }

    /// Returns true if the time limit ended the search for causes. A cause may exist that was not tried.
    pub(crate) fn is_search_unfinished(&self) -> bool {
        self.findings.iter().any(|finding| finding.kind == CauseKind::Unfinished)
    }

    /// Records the verdict of a run with the changes of these findings applied together.
    pub fn confirm(&mut self, findings: &[usize], verdict: Verdict) {
        findings.iter().for_each(|&at| self.findings[at].confirmed = Some(verdict));
    }

    /// Returns the causes that together explain every failure, confirmed by a run with their changes applied.
    /// Empty if there is no such run.
    pub fn confirmed_causes(&self) -> Vec<&Finding> {
        let is_confirmed = |finding: &&Finding| finding.confirmed.is_some_and(Verdict::is_good);
        self.findings.iter().filter(is_confirmed).collect()
    }

    /// Returns the first failing row in data-flow order.
    pub fn first_divergence(&self) -> Option<&SiteResult> {
        self.rows.iter().find(|row| row.verdict == Verdict::Fail)
    }

    /// Returns the 8-bit integer products of the dump's engine, if its values show any.
    pub fn integers(&self) -> Option<IntegerProducts> {
        self.basis.evidence.iter().find_map(|(_, found)| found.integers)
    }

    /// Returns the rows before the first failing row, in data-flow order. All rows if none fails.
    pub(crate) fn before_divergence(&self) -> &[SiteResult] {
        let end = self.rows.iter().position(|row| row.verdict == Verdict::Fail);
        &self.rows[..end.unwrap_or(self.rows.len())]
    }

    /// Makes all failing rows inconclusive, with one reason.
    pub fn doubt(&mut self, why: &str) {
        for row in self.rows.iter_mut().filter(|row| row.verdict == Verdict::Fail) {
            (row.verdict, row.reason) = (Verdict::Inconclusive, Some(why.to_owned()));
        }
        self.findings.clear();
        if self.verdict == Verdict::Fail {
            self.verdict = Verdict::Inconclusive;
            let doubtful = self.rows.iter().find(|row| row.verdict == Verdict::Inconclusive);
            self.reason = doubtful.map(|row| format!("{}: {why}", row.site));
        }
    }

    /// Makes failing log-probabilities inconclusive if their error is at most `apart`, the difference between
    /// a server's answers to the same request. Does nothing if there are findings.
    pub fn doubt_within(&mut self, apart: f64) {
        if !self.findings.is_empty() {
            return;
        }
        for row in self.rows.iter_mut().filter(|row| row.verdict == Verdict::Fail) {
            let is_of_logarithms = matches!(row.site.point, Point::TokenLogprobs | Point::TopLogprobs);
            let Some(error) = row.judged().map(|found| found.errors.max_abs) else { continue };
            if is_of_logarithms && error <= NoiseFloor::NEAR * apart {
                row.verdict = Verdict::Inconclusive;
                row.reason = Some(format!(
                    "off by {error:.1e}, which is above the noise floor, but the server's own answers to one \
                     request differ by {apart:.1e}"
                ));
            }
        }
        if self.verdict == Verdict::Fail && self.count(Verdict::Fail) == 0 {
            self.verdict = Verdict::Inconclusive;
            let doubtful = self.rows.iter().find(|row| row.verdict == Verdict::Inconclusive);
            self.reason = doubtful.and_then(|row| Some(format!("{}: {}", row.site, row.reason.as_deref()?)));
        }
    }

    /// Returns the number of rows with this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// Returns one summary per checkpoint. Omits inputs that were not compared, and for a known case every
    /// checkpoint that was not compared.
    pub(crate) fn summaries(&self, checkpoints: &[Checkpoint]) -> Vec<CheckpointSummary> {
        let summaries = checkpoints.iter().map(|&checkpoint| self.summary(checkpoint));
        summaries
            .filter(|summary| {
                let always = summary.checkpoint != Checkpoint::Input && !self.subject.is_case;
                always || summary.site.is_some()
            })
            .collect()
    }

    fn summary(&self, checkpoint: Checkpoint) -> CheckpointSummary {
        let rows = || self.rows.iter().filter(move |row| row.checkpoint() == checkpoint);
        let verdict = rows().map(|row| row.verdict).max().unwrap_or(Verdict::Inconclusive);
        // If some rows have numbers, token rows are left out: ids have no distance.
        let has_numbers = rows().any(|row| row.site.point.kind() == ValueKind::Real);
        let figured = || rows().filter(move |row| !has_numbers || row.site.point.kind() == ValueKind::Real);
        // `max_by` keeps the last of equal rows. Reversing the rows keeps the first in data-flow order.
        let worst_row = rows().rev().filter(|row| row.verdict == verdict).max_by(|a, b| by_error(a, b));
        CheckpointSummary {
            checkpoint,
            number: checkpoint.number(),
            verdict,
            local: worst(figured().filter_map(|row| row.local.as_ref())),
            accumulated: worst(figured().filter_map(|row| row.accumulated.as_ref())),
            bound_ratio: rows().filter_map(SiteResult::bound_ratio).reduce(larger),
            over: rows().filter_map(|row| Some(row.explained.as_ref()?.over())).reduce(|a, b| a + b),
            tolerance: worst_row.map(|row| row.tolerance.max_abs),
            site: worst_row.map(|row| row.site),
            is_culprit: false,
        }
    }
}

/// Compares two rows by their judged error. Rows without an error sort first, NaN last.
fn by_error(a: &SiteResult, b: &SiteResult) -> Ordering {
    let key = |row: &SiteResult| {
        let error = row.judged().map(|found| found.errors.max_abs);
        (error.is_some_and(f64::is_nan), error.unwrap_or(f64::NEG_INFINITY))
    };
    let (a, b) = (key(a), key(b));
    a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
}

/// Returns each statistic at its worst measurement.
fn worst<'o>(measurements: impl Iterator<Item = &'o Measurement>) -> Option<Errors> {
    measurements.map(|found| found.errors).reduce(Errors::worse)
}
