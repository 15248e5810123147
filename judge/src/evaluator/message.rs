//! Requests to the worker and its answers.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checkpoint::{ModulePath, Point, Site};
use crate::dump::TensorRow;
use crate::error::{Error, Result};

/// Version of the protocol.
pub(super) const PROTOCOL: u32 = 1;

/// Name of the worker's output in error messages.
pub(super) const OUTPUT: &str = "the evaluator";

/// A request, written as one line of JSON.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "request", rename_all = "lowercase")]
pub(crate) enum EvaluatorRequest<'r> {
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
    /// Searches for the cause of a wrong value of the dump that was evaluated last.
    Causes {
        /// Version of the protocol.
        protocol: u32,
        /// The value.
        #[serde(flatten)]
        value: ValueName,
        /// Time limit of the search.
        seconds: u64,
    },
}

impl<'r> EvaluatorRequest<'r> {
    /// Returns the request to evaluate a dump.
    pub(crate) fn evaluate(model: &'r Path, dump: &'r Path, runs: u32) -> Self {
        Self::Evaluate { protocol: PROTOCOL, model, dump, runs }
    }

    /// Returns the request to explain a wrong value.
    pub(super) fn causes(value: ValueName, seconds: u64) -> Self {
        Self::Causes { protocol: PROTOCOL, value, seconds }
    }
}

/// A message of the worker, without its arrays.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "message", rename_all = "lowercase")]
pub(crate) enum EvaluatorAnswer {
    /// The first message of an evaluation.
    Hello(WorkerFacts),
    /// Exact values of a module's output, or of a tap.
    Site(ExactOutput),
    /// A value that could not be evaluated.
    Missing {
        /// The value.
        #[serde(flatten)]
        value: ValueName,
        /// The reason.
        why: String,
    },
    /// Progress of the evaluation.
    Progress {
        /// Finished steps.
        done: usize,
        /// All steps.
        total: usize,
        /// Text about the current step, for the progress display.
        #[serde(default)]
        what: String,
    },
    /// A cause of a wrong module.
    Cause(FoundCause),
    /// Facts about wrong values for which no cause was found.
    Facts {
        /// The facts, as a part of a sentence.
        text: String,
    },
    /// The request failed. The last message of an answer.
    Error {
        /// The message.
        text: String,
    },
}

/// The evaluating program, and its description of the model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct WorkerFacts {
    /// Version of the protocol.
    pub(crate) protocol: u32,
    /// Version of torch.
    pub(crate) torch: String,
    /// Version of transformers.
    pub(crate) transformers: String,
    /// Architecture: `model_type` of the configuration.
    pub(crate) architecture: String,
    pub(crate) model_class: String,
    /// File with the modelling code.
    #[serde(default)]
    pub(crate) source: String,
    /// Modules in the order of execution.
    pub(crate) modules: Vec<ModuleFacts>,
}

/// A module of the model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct ModuleFacts {
    /// Path, as in `model.named_modules()`.
    pub(crate) path: String,
}

/// The output of a module in one call, or a tap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ValueName {
    /// Path of the module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) module: Option<String>,
    /// Number of the module's call in the pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) call: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tap: Option<String>,
    /// Layer of the tap; omitted for a tap that exists once in a pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layer: Option<usize>,
    pub(crate) pass: usize,
}

impl ValueName {
    /// Returns the site of the value.
    ///
    /// # Errors
    /// If it names neither a module nor a known tap.
    pub(super) fn site(&self) -> Result<Site> {
        let (point, layer) = match (&self.module, &self.tap) {
            (Some(module), None) => {
                let (path, layer) =
                    ModulePath::in_model(module, self.call.unwrap_or(0)).map_err(Error::Usage)?;
                (Point::Module(path), layer)
            }
            (None, Some(tap)) => (tap.parse::<Point>().map_err(refuse)?, self.layer),
            _ => return Err(refuse("a value needs exactly one of \"module\" and \"tap\"".to_owned())),
        };
        Ok(Site { point, layer, pass: Some(self.pass) })
    }
}

impl From<&TensorRow> for ValueName {
    fn from(row: &TensorRow) -> Self {
        let pass = row.pass.unwrap_or(0);
        match &row.module {
            Some(module) => {
                Self { module: Some(module.clone()), call: Some(row.call), pass, ..Self::default() }
            }
            None => Self { tap: Some(row.tap.clone()), layer: row.layer, pass, ..Self::default() },
        }
    }
}

/// A value that was evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
pub(crate) struct ExactOutput {
    #[serde(flatten)]
    pub(crate) value: ValueName,
    #[serde(default)]
    pub(crate) kind: OutputKind,
    /// True if the values depend on a choice that rounding can change, such as the experts of a token.
    #[serde(default, rename = "tie")]
    pub(crate) is_tie: bool,
    /// Path of the module that makes the choice.
    #[serde(default)]
    pub(crate) choice: Option<String>,
}

/// Kind of a module's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutputKind {
    /// Real numbers.
    #[default]
    Real,
    /// Indices, such as the chosen experts.
    Ids,
}

/// A change of the model that explains a wrong module.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct FoundCause {
    /// Description of the cause, as a part of a sentence.
    pub(crate) what: String,
    /// Key of the configuration.
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// The model's value.
    #[serde(default)]
    pub(crate) expected: Option<String>,
    /// The candidate's value.
    #[serde(default)]
    pub(crate) found: Option<String>,
    /// File of the modelling code.
    #[serde(default)]
    pub(crate) file: Option<String>,
    /// Line in that file.
    #[serde(default)]
    pub(crate) line: Option<usize>,
}

/// Returns the error for a message that violates the protocol.
pub(super) fn refuse(problem: String) -> Error {
    let advice = "use the Python package of this version of xcheck";
    Error::dump(Path::new(OUTPUT), format!("{problem}; {advice}"))
}
