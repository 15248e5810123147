//! What a divergence is: changes of the catalogue, each replayed on the inputs that the dump holds.
//!
//! A cause is named where it explains every value of a stage, what the model asks for does not, and no other cause does;
//! else those that remain are told. What does not hold is not said.

mod dumps;
mod finding;
mod nonfinite;
mod pattern;
mod stage;
mod tokens;
mod words;

pub use finding::Finding;
pub(super) use tokens::of_prompt;

use crate::change::Change;
use crate::compare::{Row, Unexplained, Verdict};
use crate::diagnose::causes::stage::Bench;
use crate::diagnose::causes::words::Words;
use crate::diagnose::runs::Setting;
use crate::dump::Dump;
use crate::error::Result;
use crate::exact::Traced;

/// More causes than this are not looked for: each is gone through the whole catalogue for.
const MOST: usize = 6;

/// What explains that an engine's dump is not what the model asks for.
///
/// # Errors
/// As a run of the model.
pub(super) fn of_engine(
    setting: &Setting,
    rows: &[Row],
    unexplained: &[Unexplained],
) -> Result<Vec<Finding>> {
    let fails = |unexplained: &&Unexplained| {
        let row = rows.iter().find(|row| row.site == unexplained.site);
        row.is_some_and(|row| row.verdict == Verdict::Fail && row.is_one_stage())
    };
    let mut findings: Vec<Finding> = nonfinite::of_rows(setting, rows, unexplained).into_iter().collect();
    // What is no number tells nothing of how it was computed.
    let is_finite = |one: &&Unexplained| one.meaningful_or(0.0).iter().all(|value| value.is_finite());
    let mut open: Vec<&Unexplained> = unexplained.iter().filter(fails).filter(is_finite).collect();
    if open.is_empty() {
        findings.extend(tokens::of_choices(setting, rows)?);
        return Ok(findings);
    }
    let (book, traced) = (setting.book()?, Traced::new(setting.numerics, setting.profile));
    let bench = Bench { setting, traced: &traced, book };
    while let Some(&first) = open.first().filter(|_| findings.len() < MOST) {
        let searched = bench.stage(first).search(&open);
        let is_done = |one: &Unexplained| match searched.named() {
            Some(changes) => bench.stage(one).is_explained_by(changes),
            // What nothing explains is told once for a tap.
            None => one.site.point == first.site.point,
        };
        let (done, rest): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|one| one.site == first.site || is_done(one));
        open = rest;
        findings
            .push(Words { role: setting.role, at: &bench.stage(first).at(), book }.told(&searched, &done));
    }
    findings.extend(tokens::of_choices(setting, rows)?);
    Ok(findings)
}

/// What explains that two dumps differ.
///
/// # Errors
/// If an array cannot be read.
pub(super) fn of_dumps(candidate: &Dump, reference: &Dump, rows: &[Row]) -> Result<Vec<Finding>> {
    Ok(dumps::other_activation(candidate, reference, rows)?.into_iter().collect())
}

/// Changes that are made one after the other in one stage.
type Changes = Vec<Change>;
