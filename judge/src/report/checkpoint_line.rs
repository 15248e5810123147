//! One line of the result tables: a checkpoint of one dump, or of all dumps of an architecture.

use crate::check::RoundingEvaluation;
use crate::checkpoint::{Checkpoint, Site, ValueKind};
use crate::measure::{Errors, larger};
use crate::verdict::{CheckpointSummary, Outcome, SiteResult, Verdict};

/// Results of a checkpoint. They are taken from the first divergence if it is at this checkpoint, otherwise from
/// the checkpoint's worst site.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CheckpointLine {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) verdict: Verdict,
    /// True for the checkpoint of the first divergence.
    pub(crate) is_culprit: bool,
    /// The site whose name is printed; `None` if nothing was compared.
    pub(crate) site: Option<Site>,
    /// Spec tolerance of the largest absolute error at the site.
    pub(crate) tolerance: Option<f64>,
    pub(crate) local: Option<Errors>,
    pub(crate) bound_ratio: Option<f64>,
    pub(crate) over: Option<usize>,
    pub(crate) accumulated: Option<Errors>,
}

impl CheckpointLine {
    /// Returns the lines of a dump, in the order of the checkpoints.
    pub(crate) fn of(outcome: &Outcome, checkpoints: &[Checkpoint]) -> Vec<Self> {
        let first = outcome.first_divergence();
        let line = |summary: CheckpointSummary<'_>| match first
            .filter(|row| row.checkpoint() == summary.checkpoint)
        {
            Some(first) => Self::first_divergence(&summary, first),
            None => Self::worst(&summary),
        };
        outcome.summaries(checkpoints).into_iter().map(line).collect()
    }

    fn first_divergence(summary: &CheckpointSummary<'_>, first: &SiteResult) -> Self {
        Self {
            is_culprit: true,
            site: Some(first.site),
            tolerance: Some(first.tolerance.max_abs),
            local: first.local.as_ref().map(|found| found.errors),
            bound_ratio: first.bound_ratio(),
            over: first.explained.as_ref().map(RoundingEvaluation::over),
            accumulated: first.accumulated.as_ref().map(|found| found.errors),
            ..Self::worst(summary)
        }
    }

    /// Returns the line of a checkpoint's worst site.
    pub(crate) fn worst(summary: &CheckpointSummary<'_>) -> Self {
        Self {
            checkpoint: summary.checkpoint,
            verdict: summary.verdict,
            is_culprit: false,
            site: summary.worst.map(|row| row.site),
            tolerance: summary.worst.map(|row| row.tolerance.max_abs),
            local: summary.local,
            bound_ratio: summary.bound_ratio,
            over: summary.over,
            accumulated: summary.accumulated,
        }
    }

    /// Returns the errors that the checkpoint is judged by: local errors, or accumulated errors if only those were measured.
    pub(crate) fn errors(&self) -> Option<Errors> {
        self.local.or(self.accumulated)
    }

    /// Returns true if the values are token ids, which are either equal or different.
    pub(crate) fn is_of_tokens(&self) -> bool {
        self.site.is_some_and(|site| site.point.kind() == ValueKind::Token)
    }

    /// Returns the worse of two lines for the same checkpoint, figure by figure.
    pub(crate) fn worse(self, other: Self) -> Self {
        // Local and accumulated errors are not comparable: if both verdicts are equal, the site with a local
        // error is named.
        let severity = |line: &Self| {
            let error = line.errors().map_or(f64::NEG_INFINITY, |errors| errors.max_abs);
            (line.verdict, line.local.is_some(), error.is_nan(), if error.is_nan() { 0.0 } else { error })
        };
        let is_worse = severity(&other).partial_cmp(&severity(&self)).is_some_and(|order| order.is_gt());
        let either = |a: Option<Errors>, b: Option<Errors>| a.into_iter().chain(b).reduce(Errors::worse);
        let (local, accumulated) =
            (either(self.local, other.local), either(self.accumulated, other.accumulated));
        let bound_ratio = self.bound_ratio.into_iter().chain(other.bound_ratio).reduce(larger);
        let over = self.over.into_iter().chain(other.over).reduce(|a, b| a + b);
        let line = if is_worse { other } else { self };
        Self { is_culprit: false, local, accumulated, bound_ratio, over, ..line }
    }
}
