//! What a run has to say: plain data, and one exporter per format, each a pure function of that data.

mod advice;
mod conclusion;
mod figures;
mod json;
mod junit;
mod markdown;
mod paint;
mod table;
mod text;
mod writer;

pub use json::json;
pub use junit::junit;
pub use markdown::markdown;
pub use table::table;
pub use writer::ReportDir;

use crate::checkpoint::{Checkpoint, Point};
use crate::compare::Verdict;
use crate::diagnose::Outcome;

/// The model that was run, for the record.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// One reference, and what it was compared with.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The model file that was run.
    pub model: ModelRecord,
    /// What was found.
    pub outcome: Outcome,
    /// The arguments that compare with this reference alone, without a choice of places.
    pub again: Vec<String>,
    /// What `xcheck inspect` takes to show the reference; `None` for a known case, which is shown whole already.
    pub reference: Option<String>,
}

/// Everything a run has to say.
#[derive(Clone, Debug)]
pub struct Report {
    /// The arguments xcheck was called with, without the program's name.
    pub command: Vec<String>,
    /// Each reference, in the order they were run.
    pub results: Vec<Comparison>,
    /// The checkpoints that were asked for, in order.
    pub checkpoints: Vec<Checkpoint>,
}

impl Report {
    /// The verdict over all references: the worst; nothing compared is inconclusive. That a prompt is encoded rightly
    /// says nothing of a model, and is no pass by itself.
    pub fn verdict(&self) -> Verdict {
        let mut points =
            self.results.iter().flat_map(|result| &result.outcome.rows).map(|row| row.site.point);
        match Verdict::over(self.results.iter().map(|result| result.outcome.verdict)) {
            Verdict::Pass if points.all(|point| point == Point::Tokens) => Verdict::Inconclusive,
            verdict => verdict,
        }
    }
}
