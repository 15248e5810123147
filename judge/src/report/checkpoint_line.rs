//! One line of the result tables: a checkpoint of one dump, or of all dumps of an architecture.

use crate::check::RoundingEvaluation;
use crate::checkpoint::{Checkpoint, ValueKind};
use crate::measure::{Errors, larger};
use crate::verdict::{CheckpointSummary, Outcome};

impl CheckpointSummary {
    /// Returns the summaries of a dump, in the order of the checkpoints. The summary of a checkpoint describes the first
    /// divergence if it is at this checkpoint, otherwise the checkpoint's worst sites.
    pub(crate) fn of(outcome: &Outcome, checkpoints: &[Checkpoint]) -> Vec<Self> {
        let mut summaries = outcome.summaries(checkpoints);
        let first = outcome.first_divergence();
        let culprit = first.and_then(|first| {
            summaries.iter_mut().find(|summary| summary.checkpoint == first.checkpoint()).zip(Some(first))
        });
        if let Some((summary, first)) = culprit {
            summary.is_culprit = true;
            summary.site = Some(first.site);
            summary.tolerance = Some(first.tolerance.max_abs);
            summary.local = first.local.as_ref().map(|found| found.errors);
            summary.bound_ratio = first.bound_ratio();
            summary.over = first.explained.as_ref().map(RoundingEvaluation::over);
            summary.accumulated = first.accumulated.as_ref().map(|found| found.errors);
        }
        summaries
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
