//! Reports of a run: plain data, and one exporter per format. Each exporter is a pure function of that data.

mod advice;
mod agent;
mod checkpoint_line;
mod command_line;
mod conclusion;
mod escaping;
mod github;
mod headline;
mod html;
mod json;
mod junit;
mod likelihoods;
mod markdown;
mod merge;
mod recorded_report;
mod report_reader;
mod result_map;
mod rollup;
mod run_failure;
mod schema;
mod server_checks;
mod table;
mod terminal_style;
pub mod text;
mod tokens;
mod writer;

pub use crate::json_number::JsonNumber;
pub use advice::{quoted, shell};
pub use agent::agent;
pub use github::github;
pub use html::html;
pub use json::json;
pub use junit::junit;
pub use markdown::{architectures as architectures_in_markdown, markdown};
pub use merge::{BUILD, found_before, merge};
pub use recorded_report::RecordedReport;
pub(crate) use recorded_report::{FailureSize, RecordedDump, RecordedRow};
pub use report_reader::{ReportContent, parse, read};
pub use rollup::{ArchitectureSummary, rolled_up};
pub use run_failure::RunFailure;
pub use server_checks::{ServerCheck, ServerReport};
pub use table::{TableOptions, architectures, maps, table, verdicts};
pub use tokens::PromptTokens;
pub use writer::ReportDir;
pub use {escaping::escape, html::HtmlPage, json::program, terminal_style::TerminalStyle, text::WIDTH};

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use crate::checkpoint::{Checkpoint, Point};
use crate::plan::Unit;
use crate::verdict::{Outcome, Verdict};

/// The model that was run, for the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRecord {
    /// Name of the model, as requested.
    pub name: String,
    /// Architecture, such as "llama".
    pub architecture: String,
    /// File format, such as "gguf" or "safetensors"; [`ModelRecord::DUMP`] if no model was run.
    pub format: String,
    /// Type of most weights: "f32", "q8_0", …
    pub quantisation: String,
    /// SHA-256 of the weight files.
    pub sha256: Option<String>,
}

impl ModelRecord {
    /// Value of `format` if both sides are dumps and no model was run.
    pub const DUMP: &str = "dump";
}

/// "tiny-llama2, llama, gguf, q8_0", without unknown facts.
impl fmt::Display for ModelRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = [&*self.name, &self.architecture, &self.format, &self.quantisation].to_vec();
        words.retain(|word| !word.is_empty());
        f.write_str(&words.join(", "))
    }
}

/// Start and duration of a run. Only some formats include them, so that equal results give equal reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Start time.
    pub started: SystemTime,
    /// Duration of the run.
    pub took: Duration,
}

impl Timing {
    /// Returns the time from `started` until now.
    pub fn since(started: SystemTime) -> Self {
        Self { started, took: started.elapsed().unwrap_or_default() }
    }
}

/// The comparison of one dump with a model or with another dump.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The model file that was run.
    pub model: ModelRecord,
    /// Result of the comparison: rows, verdict and findings.
    pub outcome: Outcome,
    /// Arguments that compare with this dump alone, without a selection.
    pub again: Vec<String>,
    /// Argument of `xcheck inspect` for the dump; `None` for a known case, and for a file that is not a dump
    /// by itself.
    pub reference: Option<String>,
    /// Input tokens and their texts.
    pub tokens: PromptTokens,
    /// Start and duration of the comparison.
    pub timing: Timing,
    /// The whole comparison that this shard is a part of, if this is a shard.
    pub sharded: Option<ShardedComparison>,
}

/// The whole comparison that a shard is a part of.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardedComparison {
    /// SHA-256 of the plan.
    pub plan: String,
    /// All units of the plan.
    pub units: Vec<Unit>,
    /// Settings that must be equal in all shards: name and value as text.
    pub asked: BTreeMap<String, String>,
    /// Notes that do not belong to a unit. They are the last entries of the outcome's notes.
    pub remarks: Vec<String>,
}

impl Comparison {
    /// Prefixes the dump's name with the model's name, in a report of several models.
    pub fn named_after(mut self, models: usize) -> Self {
        let (model, dump) = (&self.model.name, &self.outcome.subject.name);
        if models > 1 && !dump.starts_with(&format!("{model}/")) {
            self.outcome.subject.name = format!("{model}/{dump}");
        }
        self
    }

    /// Returns true if both sides are dumps and no model was run.
    fn is_of_dumps(&self) -> bool {
        self.model.format == ModelRecord::DUMP
    }
}

/// All results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Command-line arguments of the run, without the program name.
    pub command: Vec<String>,
    /// Comparisons, in the order in which they were run.
    pub results: Vec<Comparison>,
    /// Requested checkpoints, in order.
    pub checkpoints: Vec<Checkpoint>,
    /// Results of a server's own checks, if a server was asked.
    pub served: Option<ServerReport>,
}

impl Report {
    /// Returns the worst verdict of all dumps. Returns inconclusive if nothing was compared, or only the
    /// tokens of a prompt.
    pub fn verdict(&self) -> Verdict {
        let served = self.served.iter().flat_map(ServerReport::verdicts);
        match Verdict::over(self.results.iter().map(|result| result.outcome.verdict).chain(served)) {
            Verdict::Pass if self.is_of_prompts_alone() => Verdict::Inconclusive,
            verdict => verdict,
        }
    }

    /// Returns the reason why the verdict is not a pass, if it concerns no single dump.
    pub fn reason(&self) -> Option<&'static str> {
        let all_good = self.results.iter().all(|result| result.outcome.verdict.is_good());
        match self.verdict().is_good() {
            _ if self.results.is_empty() && self.served.is_none() => {
                Some("there was no reference to compare with")
            }
            false if self.served.as_ref().is_some_and(|served| served.worst().is_some()) => None,
            false if all_good => {
                Some("only the text or tokens of prompts were compared, so the model was not tested")
            }
            _ => None,
        }
    }

    fn is_of_prompts_alone(&self) -> bool {
        let mut rows = self.results.iter().flat_map(|result| &result.outcome.rows);
        let is_of_texts = self.served.as_ref().is_none_or(ServerReport::is_of_texts_alone);
        is_of_texts && rows.all(|row| row.site.point == Point::Tokens)
    }
}
