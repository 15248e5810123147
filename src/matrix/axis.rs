//! Axes of a matrix, and the expected results of cells.

use toml::Spanned;

use crate::checkpoint::Point;
use crate::error::Result;
use crate::matrix::definition::DefinitionText;
use crate::verdict::Verdict;

#[derive(Clone, Debug)]
pub(crate) struct MatrixAxis {
    /// Name of the axis.
    pub(crate) name: String,
    /// Distinct values.
    pub(crate) values: Vec<String>,
}

/// Expected result of a cell.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedResult {
    /// Expected verdict: fail or inconclusive.
    pub(crate) verdict: Verdict,
    /// Tap of the first divergence, if it is expected.
    pub(crate) tap: Option<Point>,
    /// Reason for the expectation.
    pub(crate) reason: String,
}

/// Returns the index of the axis that a file names.
pub(super) fn axis_named(
    axes: &[MatrixAxis],
    name: &Spanned<String>,
    lines: &DefinitionText,
) -> Result<usize> {
    let found = axes.iter().position(|axis| axis.name == *name.get_ref());
    found.ok_or_else(|| lines.refuse(name.span(), unknown_axis(name.get_ref(), axes, &[])))
}

/// Returns the error for an unknown axis name; `more` are other names that are allowed there.
pub(super) fn unknown_axis(name: &str, axes: &[MatrixAxis], more: &[&str]) -> String {
    let known: Vec<_> = axes.iter().map(|axis| axis.name.as_str()).chain(more.iter().copied()).collect();
    format!("unknown axis '{name}'; known: {}", known.join(", "))
}
