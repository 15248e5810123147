//! A run without a verdict: its error message, in every format.

use std::iter::once;

use crate::report::Timing;

/// A run that ended with an error before it had a verdict.
#[derive(Clone, Debug)]
pub struct RunFailure {
    /// Command-line arguments of the run, without the program name.
    pub command: Vec<String>,
    /// Error message.
    pub error: String,
    /// Start and duration.
    pub timing: Timing,
}

impl RunFailure {
    /// Word in the verdict column if a run could not be judged.
    pub(crate) const WORD: &str = "error";

    /// Returns the subcommand without options, such as "xcheck run".
    pub(super) fn name(&self) -> String {
        once("xcheck").chain(self.command.first().map(String::as_str)).collect::<Vec<_>>().join(" ")
    }
}
