//! Patterns that select cells, for include, exclude and expectations.

use std::collections::BTreeMap;

use toml::Spanned;

use crate::checkpoint::Point;
use crate::error::Result;
use crate::matrix::axis::{ExpectedResult, MatrixAxis, axis_named};
use crate::matrix::definition::{
    CellPattern, DefinitionText, ExpectationDefinition, MatrixDefinition, texts,
};
use crate::verdict::Verdict;

/// Accepted values by axis. An axis without an entry accepts every value.
pub(crate) struct CellFilter(BTreeMap<usize, Vec<String>>);

impl CellFilter {
    /// Returns true if the pattern matches a cell.
    pub(crate) fn is_of(&self, values: &[String]) -> bool {
        self.0.iter().all(|(axis, wanted)| wanted.contains(&values[*axis]))
    }
}

/// Parses patterns and checks that each matches a cell.
///
/// # Errors
/// If a pattern matches no cell, or names an unknown axis or value.
pub(crate) fn fits_all(
    patterns: &[Spanned<CellPattern>],
    what: &str,
    axes: &[MatrixAxis],
    combinations: &[Vec<String>],
    lines: &DefinitionText,
) -> Result<Vec<CellFilter>> {
    patterns.iter().map(|pattern| fit(pattern, what, axes, combinations, lines)).collect()
}

/// Reads a pattern. An entry that matches no cell is a typo or stale.
fn fit(
    pattern: &Spanned<CellPattern>,
    what: &str,
    axes: &[MatrixAxis],
    combinations: &[Vec<String>],
    lines: &DefinitionText,
) -> Result<CellFilter> {
    if pattern.get_ref().is_empty() {
        return Err(lines.refuse(pattern.span(), format!("{what} names no axis")));
    }
    let mut fit = CellFilter(BTreeMap::new());
    for (name, values) in pattern.get_ref() {
        let axis = axis_named(axes, name, lines)?;
        let refuse = |problem: String| lines.refuse(values.span(), format!("{what}: {problem}"));
        let values = texts(values.get_ref()).map_err(&refuse)?;
        let known = &axes[axis].values;
        if let Some(value) = values.iter().find(|value| !known.contains(value)) {
            let problem = format!(
                "'{value}' is not a value of the axis '{}'; known: {}",
                name.get_ref(),
                known.join(", ")
            );
            return Err(refuse(problem));
        }
        fit.0.insert(axis, values);
    }
    match combinations.iter().any(|values| fit.is_of(values)) {
        true => Ok(fit),
        false => Err(lines.refuse(pattern.span(), format!("{what} matches no cell"))),
    }
}

/// Returns the expectation of each combination.
///
/// # Errors
/// If an expectation is invalid or a duplicate.
pub(crate) fn expectations(
    written: &MatrixDefinition,
    axes: &[MatrixAxis],
    combinations: &[Vec<String>],
    lines: &DefinitionText,
) -> Result<Vec<Option<ExpectedResult>>> {
    let mut found: Vec<Option<ExpectedResult>> = vec![None; combinations.len()];
    for entry in &written.expect {
        let ExpectationDefinition { of, .. } = entry.get_ref();
        let expected = expected(entry.get_ref(), lines)?;
        let fit = fit(of, "expect", axes, combinations, lines)?;
        for (values, known) in combinations.iter().zip(&mut found).filter(|(values, _)| fit.is_of(values)) {
            if known.replace(expected.clone()).is_some() {
                let problem = format!("duplicate expectation for {}", values.join(", "));
                return Err(lines.refuse(entry.span(), problem));
            }
        }
    }
    Ok(found)
}

fn expected(entry: &ExpectationDefinition, lines: &DefinitionText) -> Result<ExpectedResult> {
    let verdict = match entry.verdict.get_ref().as_str() {
        "fail" => Verdict::Fail,
        "inconclusive" => Verdict::Inconclusive,
        other => {
            let problem =
                format!("verdict is '{other}', expected fail or inconclusive: a pass needs no expectation");
            return Err(lines.refuse(entry.verdict.span(), problem));
        }
    };
    let tap = entry.tap.as_ref().map(|tap| {
        let known = Point::ALL.iter().find(|point| point.name() == tap.get_ref());
        let known = known.copied().filter(|_| verdict == Verdict::Fail);
        let problem = format!(
            "tap is '{}', expected a tap of `xcheck checkpoints` with verdict \"fail\"",
            tap.get_ref()
        );
        known.ok_or_else(|| lines.refuse(tap.span(), problem))
    });
    if entry.reason.get_ref().trim().is_empty() {
        return Err(lines.refuse(entry.reason.span(), "reason is empty, expected why the failure is known"));
    }
    Ok(ExpectedResult { verdict, tap: tap.transpose()?, reason: entry.reason.get_ref().clone() })
}
