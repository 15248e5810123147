//! Result of a cell, compared with its expectation.

use crate::checkpoint::Site;
use crate::matrix::axis::ExpectedResult;
use crate::matrix::plan::MatrixCell;
use crate::report::{ArchitectureSummary, Report};
use crate::verdict::Verdict;

/// A cell with its report, run now or cached.
#[derive(Clone, Debug)]
pub(crate) struct CellResult<'p> {
    /// The cell of the plan.
    pub(crate) cell: &'p MatrixCell,
    /// The cell that was run.
    pub(crate) command: Vec<String>,
    /// Content of the report, or the error message.
    pub(crate) found: Result<CellSummary, String>,
    /// True if the cell was run this time, false if its report was cached.
    pub(crate) was_run: bool,
    /// Cache key, or the reason why there is none and the cell is run each time.
    pub(crate) key: Result<String, String>,
    /// True if the cell wrote a report, even one of an error.
    pub(crate) has_report: bool,
}

/// Summary of a report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CellSummary {
    /// Overall verdict of all references.
    pub(crate) verdict: Verdict,
    /// Reason why the cell does not pass.
    pub(crate) reason: Option<String>,
    /// Largest bound ratio, if error bounds were computed.
    pub(crate) bound_ratio: Option<f64>,
    /// First divergence of the first failing reference.
    pub(crate) first: Option<Site>,
    /// First divergence of each reference whose verdict equals the cell's verdict.
    pub(crate) at: Vec<Option<Site>>,
    /// Cause of the first divergence, if one was found.
    pub(crate) because: Option<String>,
    /// Results per architecture.
    pub(crate) architectures: Vec<ArchitectureSummary>,
}

impl CellSummary {
    /// Summarises a report.
    pub(crate) fn of(report: &Report) -> Self {
        let outcomes = || report.results.iter().map(|result| &result.outcome);
        let most = outcomes().map(|outcome| outcome.verdict).max();
        let mut worst = outcomes().filter(|outcome| Some(outcome.verdict) == most);
        let at: Vec<Option<Site>> =
            worst.clone().map(|outcome| Some(outcome.first_divergence()?.site)).collect();
        let worst = worst.next();
        let bound_ratio = outcomes().flat_map(|outcome| &outcome.rows).filter_map(|row| row.bound_ratio());
        let larger = |one: f64, other: f64| if one.is_nan() || one > other { one } else { other };
        let because = worst.map(|outcome| {
            let found = outcome.findings.iter().map(|finding| finding.what.as_str());
            found.collect::<Vec<_>>().join("; ")
        });
        let verdict = report.verdict();
        let own = report.reason().map(str::to_owned);
        Self {
            verdict,
            reason: own.or_else(|| worst.filter(|_| !verdict.is_good())?.reason.clone()),
            bound_ratio: bound_ratio.reduce(larger),
            first: at.first().copied().flatten(),
            at,
            because: because.filter(|because| !because.is_empty()),
            architectures: report.by_architecture(),
        }
    }
}

/// Result of a cell after its expectation is applied. Later variants are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CellStatus {
    /// The cell passes.
    Pass,
    /// The cell fails as expected.
    Known,
    /// The cell is inconclusive.
    Inconclusive,
    /// The cell passes, but a failure was expected.
    Unexpected,
    /// The cell fails, and no failure was expected.
    Fail,
    /// The cell has no verdict because of an error.
    Error,
}

impl CellStatus {
    /// All results, from best to worst.
    pub(crate) const ALL: [CellStatus; 6] =
        [Self::Pass, Self::Known, Self::Inconclusive, Self::Unexpected, Self::Fail, Self::Error];

    /// The word used in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Known => "known",
            Self::Inconclusive => "inconclusive",
            Self::Unexpected => "unexpected pass",
            Self::Fail => "fail",
            Self::Error => "error",
        }
    }

    /// Returns the verdict that this status counts as; `None` without a verdict.
    pub(crate) fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Pass | Self::Known => Some(Verdict::Pass),
            Self::Inconclusive => Some(Verdict::Inconclusive),
            Self::Unexpected | Self::Fail => Some(Verdict::Fail),
            Self::Error => None,
        }
    }

    /// Returns true if the result needs no action.
    pub(crate) fn is_good(self) -> bool {
        self <= Self::Known
    }
}

impl CellResult<'_> {
    /// Returns the result after the expectation is applied.
    pub(crate) fn standing(&self) -> CellStatus {
        let Ok(found) = &self.found else { return CellStatus::Error };
        let plain = match found.verdict {
            Verdict::Pass | Verdict::Tie | Verdict::Known => CellStatus::Pass,
            Verdict::Inconclusive => CellStatus::Inconclusive,
            Verdict::Fail => CellStatus::Fail,
        };
        match &self.cell.expected {
            Some(_) if found.verdict.is_good() => CellStatus::Unexpected,
            Some(expected) if is_as_known(found, expected) => CellStatus::Known,
            _ => plain,
        }
    }

    /// Returns one sentence: the reason of a failure, or the reason of its expectation. Empty for a pass.
    pub fn told(&self) -> String {
        let expected = self.cell.expected.as_ref();
        match (&self.found, expected) {
            (Err(message), _) => message.clone(),
            (_, Some(expected)) if self.standing() == CellStatus::Known => expected.reason.clone(),
            (_, Some(expected)) if self.standing() == CellStatus::Unexpected => {
                format!(
                    "expected {} ({}), but the cell passes: remove the expectation",
                    expected.verdict, expected.reason
                )
            }
            (Ok(found), Some(expected)) => {
                let tap = expected.tap.map(|tap| format!(" at {tap}")).unwrap_or_default();
                let wanted = format!("expected instead: {}{tap} ({})", expected.verdict, expected.reason);
                found.reason.iter().cloned().chain([wanted]).collect::<Vec<_>>().join("; ")
            }
            (Ok(found), None) => found.reason.clone().unwrap_or_default(),
        }
    }
}

fn is_as_known(found: &CellSummary, expected: &ExpectedResult) -> bool {
    let is_there = |tap| found.at.iter().all(|site| site.is_some_and(|site| site.point == tap));
    found.verdict == expected.verdict && expected.tap.is_none_or(is_there)
}
