//! A run without a verdict: its error, in each format.

use std::iter::once;

use crate::report::Timing;

/// A run that ended with an error before it could judge.
#[derive(Clone, Debug)]
pub struct RunFailure {
    /// The arguments xcheck was called with, without the program's name.
    pub command: Vec<String>,
    /// The message.
    pub error: String,
    /// When it ran.
    pub timing: Timing,
}

impl RunFailure {
    /// Word in place of a verdict.
    pub const WORD: &str = "error";

    /// The commands without their options: "xcheck run".
    pub(super) fn name(&self) -> String {
        once("xcheck").chain(self.command.first().map(String::as_str)).collect::<Vec<_>>().join(" ")
    }
}
