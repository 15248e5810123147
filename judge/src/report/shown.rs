//! What tables for people say of a checkpoint.

use crate::checkpoint::Checkpoint;
use crate::compare::{Explained, Row, Verdict};
use crate::diagnose::{Outcome, Summary};
use crate::measure::Errors;

/// One line of a table: of the checkpoint at which two engines part, the first divergence; of any other, its worst.
#[derive(Clone, Debug)]
pub struct Shown<'o> {
    pub checkpoint: Checkpoint,
    pub verdict: Verdict,
    /// Whether it is the checkpoint of the first divergence.
    pub is_culprit: bool,
    /// The row whose place is shown; `None` if nothing was compared.
    pub row: Option<&'o Row>,
    pub introduced: Option<Errors>,
    pub headroom: Option<f64>,
    pub beyond: Option<usize>,
    pub total: Option<Errors>,
}

impl<'o> Shown<'o> {
    /// The lines of a reference, in the order of the checkpoints.
    pub fn of(outcome: &'o Outcome, checkpoints: &[Checkpoint]) -> Vec<Self> {
        let first = outcome.first_divergence();
        let line = |summary: Summary<'o>| match first.filter(|row| row.checkpoint() == summary.checkpoint) {
            Some(first) => Self::first_divergence(&summary, first),
            None => Self::worst(&summary),
        };
        outcome.summaries(checkpoints).into_iter().map(line).collect()
    }

    fn first_divergence(summary: &Summary<'o>, first: &'o Row) -> Self {
        Self {
            is_culprit: true,
            row: Some(first),
            introduced: first.introduced.as_ref().map(|found| found.errors),
            headroom: first.headroom(),
            beyond: first.explained.as_ref().map(Explained::beyond),
            total: first.total.as_ref().map(|found| found.errors),
            ..Self::worst(summary)
        }
    }

    fn worst(summary: &Summary<'o>) -> Self {
        Self {
            checkpoint: summary.checkpoint,
            verdict: summary.verdict,
            is_culprit: false,
            row: summary.worst,
            introduced: summary.introduced,
            headroom: summary.headroom,
            beyond: summary.beyond,
            total: summary.total,
        }
    }
}
