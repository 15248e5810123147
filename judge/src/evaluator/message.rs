//! Requests to the worker and its answers.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// Version of the protocol.
pub(super) const PROTOCOL: u32 = 1;

/// A request, written as one line of JSON.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "request", rename_all = "lowercase")]
pub enum EvaluatorRequest<'r> {
    /// Evaluates all recorded modules of a dump.
    Evaluate {
        /// Version of the protocol.
        protocol: u32,
        /// Folder of the model.
        model: &'r Path,
        /// Path of the dump.
        dump: &'r Path,
        /// Number of runs with rounding noise.
        runs: u32,
    },
    /// Searches for the cause of a wrong module of the dump that was evaluated last.
    Causes {
        /// Version of the protocol.
        protocol: u32,
        /// Path of the module.
        module: &'r str,
        /// Number of its call in the pass.
        call: usize,
        /// Number of the pass.
        pass: usize,
        /// Time limit of the search.
        seconds: u64,
    },
}

impl<'r> EvaluatorRequest<'r> {
    /// Returns the request to evaluate a dump.
    pub fn evaluate(model: &'r Path, dump: &'r Path, runs: u32) -> Self {
        Self::Evaluate { protocol: PROTOCOL, model, dump, runs }
    }

    /// Returns the request to explain a wrong module.
    pub(super) fn causes(module: &'r str, call: usize, pass: usize, seconds: u64) -> Self {
        Self::Causes { protocol: PROTOCOL, module, call, pass, seconds }
    }
}

/// A message of the worker, without its arrays.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "message", rename_all = "lowercase")]
pub enum EvaluatorAnswer {
    /// The first message of an evaluation.
    Hello(WorkerFacts),
    /// Exact values of a module's output.
    Site(OutputName),
    /// An output that could not be evaluated.
    Missing {
        /// The output.
        #[serde(flatten)]
        output: OutputName,
        /// The reason.
        why: String,
    },
    /// Progress of the evaluation.
    Progress {
        /// Finished steps.
        done: usize,
        /// All steps.
        total: usize,
        /// The current step.
        #[serde(default)]
        what: String,
    },
    /// A cause of a wrong module.
    Cause(FoundCause),
    /// The request failed. The last message of an answer.
    Error {
        /// The message.
        text: String,
    },
}

/// The program that evaluates, and the model as it knows it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct WorkerFacts {
    /// Version of the protocol.
    pub protocol: u32,
    /// Version of torch.
    pub torch: String,
    /// Version of transformers.
    pub transformers: String,
    /// Architecture: `model_type` of the configuration.
    pub architecture: String,
    /// Class of the model.
    pub model_class: String,
    /// File with the modelling code.
    #[serde(default)]
    pub source: String,
    /// Modules in the order of execution.
    pub modules: Vec<ModuleFacts>,
}

/// A module of the model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ModuleFacts {
    /// Path, as in `model.named_modules()`.
    pub path: String,
}

/// The output of a module, in one call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
pub struct OutputName {
    /// Path of the module.
    pub module: String,
    /// Number of the call in the pass.
    #[serde(default)]
    pub call: usize,
    /// Number of the pass.
    #[serde(rename = "pass")]
    pub pass: usize,
    /// Kind of the values.
    #[serde(default)]
    pub kind: OutputKind,
    /// True if the values depend on a choice that rounding can decide either way, such as the experts of a token.
    #[serde(default, rename = "tie")]
    pub is_tie: bool,
}

/// Kind of a module's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputKind {
    /// Real numbers.
    #[default]
    Real,
    /// Indices, such as the chosen experts.
    Ids,
}

/// A change of the model that explains a wrong module.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct FoundCause {
    /// Description, a part of a sentence.
    pub what: String,
    /// Key of the configuration.
    #[serde(default)]
    pub key: Option<String>,
    /// The model's value.
    #[serde(default)]
    pub expected: Option<String>,
    /// The candidate's value.
    #[serde(default)]
    pub found: Option<String>,
    /// File of the modelling code.
    #[serde(default)]
    pub file: Option<String>,
    /// Line in that file.
    #[serde(default)]
    pub line: Option<usize>,
}
