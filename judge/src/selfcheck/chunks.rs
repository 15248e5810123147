//! Check that results do not depend on how a prompt is split into passes.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::selfcheck::boundary::boundaries;
use crate::selfcheck::operations::OperationFloors;
use crate::selfcheck::{CheckResult, CheckSubject};
use crate::verdict::Verdict;

/// Compares every tap at every position between one pass and several chunks. Some chunks end at or near each
/// boundary.
///
/// # Errors
/// If the model cannot be run.
pub fn chunks_equal_one_pass(subject: CheckSubject) -> Result<CheckResult> {
    const NAME: &str = "chunks equal one pass";
    let length = subject.tokens().len();
    let sizes = sizes(subject, length);
    let Some(&largest) = sizes.last() else {
        return Ok(CheckResult::new(NAME, Verdict::Inconclusive, "the context is too short: one chunk"));
    };
    let stages = OperationFloors::of(subject, subject.exactness())?;
    let mut last = None;
    for &size in &sizes {
        let checked = stages.judge(NAME, subject, &cut(length, size))?;
        if checked.verdict != Some(Verdict::Pass) {
            return Ok(CheckResult { detail: format!("chunks of {size}: {}", checked.detail), ..checked });
        }
        last = Some(checked);
    }
    let detail = last.map_or_else(String::new, |checked| checked.detail);
    let beyond: Vec<_> =
        boundaries(subject.model).into_iter().filter(|&boundary| boundary >= length).collect();
    let uncrossed = match beyond.first() {
        Some(boundary) => format!("; {length} tokens do not cross the boundary at {boundary}"),
        None => String::new(),
    };
    let count = sizes.len();
    Ok(CheckResult::new(
        NAME,
        Verdict::Pass,
        format!("{count} chunk sizes up to {largest}, each with {detail}{uncrossed}"),
    ))
}

/// Returns the chunk sizes to check. All are smaller than `length`.
fn sizes(subject: CheckSubject, length: usize) -> BTreeSet<usize> {
    let around =
        boundaries(subject.model).into_iter().flat_map(|boundary| boundary.saturating_sub(1)..=boundary + 1);
    [3, 16].into_iter().chain(around).filter(|size| (2..length).contains(size)).collect()
}

/// Splits a length into chunks of one size. If the last chunk would have one token, it is merged with the one
/// before, since decoding has its own check.
fn cut(length: usize, size: usize) -> Vec<usize> {
    let mut chunks = vec![size; length / size];
    match (length % size, chunks.last_mut()) {
        (0, _) => {}
        (1, Some(last)) => *last += 1,
        (rest, _) => chunks.push(rest),
    }
    chunks
}
