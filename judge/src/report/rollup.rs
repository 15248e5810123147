//! Results of several models, summarised by architecture and checkpoint.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoint;
use crate::report::{Comparison, Report, text};
use crate::verdict::{CheckpointSummary, Verdict};

/// Summary of all dumps of one architecture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArchitectureSummary {
    /// The architecture's name.
    pub(crate) architecture: String,
    /// The names of the models.
    pub(crate) models: BTreeSet<String>,
    pub(crate) dumps: usize,
    /// Worst verdict.
    pub(crate) verdict: Verdict,
    /// Each compared checkpoint with its worst figures over all dumps.
    pub(crate) checkpoints: Vec<CheckpointSummary>,
}

impl ArchitectureSummary {
    fn of(result: &Comparison, checkpoints: &[Checkpoint]) -> Self {
        let summaries = result.outcome.summaries(checkpoints).into_iter();
        Self {
            architecture: result.model.architecture.clone(),
            models: BTreeSet::from([result.model.name.clone()]),
            dumps: 1,
            verdict: result.outcome.verdict,
            checkpoints: summaries.filter(|summary| summary.site.is_some()).collect(),
        }
    }

    /// Adds another summary of the same architecture.
    fn add(&mut self, other: Self) {
        self.models.extend(other.models);
        self.dumps += other.dumps;
        self.verdict = self.verdict.max(other.verdict);
        for line in other.checkpoints {
            match self.checkpoints.iter_mut().find(|own| own.checkpoint == line.checkpoint) {
                Some(own) => *own = own.clone().worse(line),
                None => self.checkpoints.push(line),
            }
        }
        self.checkpoints.sort_by_key(|line| line.checkpoint);
    }

    /// Returns a title such as "llama  ·  3 dumps of tiny-llama2, tiny-llama3".
    pub(crate) fn title(&self) -> String {
        let models = self.models.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let dumps = text::count(self.dumps, "dump");
        format!("{}  ·  {dumps} of {models}", self.architecture)
    }
}

/// Combines summaries into one per architecture, in order of first appearance.
pub fn rolled_up(summaries: impl IntoIterator<Item = ArchitectureSummary>) -> Vec<ArchitectureSummary> {
    let mut all: Vec<ArchitectureSummary> = Vec::new();
    for summary in summaries {
        match all.iter_mut().find(|known| known.architecture == summary.architecture) {
            Some(known) => known.add(summary),
            None => all.push(summary),
        }
    }
    all
}

impl Report {
    /// Returns one summary per architecture.
    pub fn by_architecture(&self) -> Vec<ArchitectureSummary> {
        rolled_up(self.results.iter().map(|result| ArchitectureSummary::of(result, &self.checkpoints)))
    }

    /// Returns one summary per architecture if the report is about several models.
    pub(crate) fn rollup(&self) -> Vec<ArchitectureSummary> {
        let models: BTreeSet<&str> = self.results.iter().map(|result| &*result.model.name).collect();
        if models.len() > 1 { self.by_architecture() } else { Vec::new() }
    }
}
