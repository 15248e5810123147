//! One exporter per format, all from the same plain data.

use crate::compare::Verdict;
use crate::diagnose::Outcome;

/// The model that was run, for the record.
#[derive(Clone, Debug)]
pub struct ModelRecord {
    /// The name it was asked for by.
    pub name: String,
    /// The family: llama, …
    pub architecture: String,
    /// "gguf", "safetensors", …
    pub format: String,
    /// Type of most weights: "f32", "q8_0", …
    pub quantisation: String,
    /// SHA-256 of the weight files.
    pub sha256: Option<String>,
}

/// Everything a run has to say.
#[derive(Clone, Debug)]
pub struct Report {
    /// The arguments xcheck was called with, without the program's name.
    pub command: Vec<String>,
    /// Each reference with the model file that was run against it, in the order they were run.
    pub results: Vec<(ModelRecord, Outcome)>,
    /// The checkpoints that were asked for, in order.
    pub checkpoints: Vec<crate::checkpoint::Checkpoint>,
}

impl Report {
    /// The verdict over all references: the worst; nothing compared is inconclusive.
    pub fn verdict(&self) -> Verdict {
        Verdict::over(self.results.iter().map(|(_, outcome)| outcome.verdict))
    }
}
