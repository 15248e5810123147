//! Patterns that select cells, for include, exclude and expectations.

use std::collections::BTreeMap;

use toml::Spanned;

use crate::checkpoint::Point;
use crate::compare::Verdict;
use crate::error::Result;
use crate::matrix::axis::{Axis, Expected, axis_named};
use crate::matrix::written::{Lines, Pattern, Written, WrittenExpected, texts};

/// Values that a cell may have, by axis; it may have any of those that are not told.
pub struct Fit(BTreeMap<usize, Vec<String>>);

impl Fit {
    /// Returns true if the pattern matches a cell.
    pub fn is_of(&self, values: &[String]) -> bool {
        self.0.iter().all(|(axis, wanted)| wanted.contains(&values[*axis]))
    }
}

/// Patterns, of which each is of some cell.
///
/// # Errors
/// If a pattern matches no cell, or names an unknown axis or value.
pub fn fits_all(
    patterns: &[Spanned<Pattern>],
    what: &str,
    axes: &[Axis],
    combinations: &[Vec<String>],
    lines: &Lines,
) -> Result<Vec<Fit>> {
    patterns.iter().map(|pattern| fit(pattern, what, axes, combinations, lines)).collect()
}

/// Reads a pattern. An entry that matches no cell is a typo or stale.
fn fit(
    pattern: &Spanned<Pattern>,
    what: &str,
    axes: &[Axis],
    combinations: &[Vec<String>],
    lines: &Lines,
) -> Result<Fit> {
    if pattern.get_ref().is_empty() {
        return Err(lines.refuse(pattern.span(), format!("{what} names no axis")));
    }
    let mut fit = Fit(BTreeMap::new());
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
pub fn expectations(
    written: &Written,
    axes: &[Axis],
    combinations: &[Vec<String>],
    lines: &Lines,
) -> Result<Vec<Option<Expected>>> {
    let mut found: Vec<Option<Expected>> = vec![None; combinations.len()];
    for entry in &written.expect {
        let WrittenExpected { of, .. } = entry.get_ref();
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

fn expected(entry: &WrittenExpected, lines: &Lines) -> Result<Expected> {
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
    Ok(Expected { verdict, tap: tap.transpose()?, reason: entry.reason.get_ref().clone() })
}
