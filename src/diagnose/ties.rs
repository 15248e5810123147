//! Token choices: equal, tied, or divergent.
//!
//! A choice made from the reference's own logits must be the reference's. One made in the ordinary run may be
//! another where the two logits are closer together than the error measured there: rounding decides such a
//! choice, and no engine is wrong.

use crate::checkpoint::{Point, Site};
use crate::compare::{Row, Verdict, aligned};
use crate::dump::Dump;
use crate::error::Result;

/// Judges the token rows of an ordinary run, which the plain comparison has left at what was introduced.
pub(super) fn judge_tokens(rows: &mut [Row], reference: &Dump) -> Result<()> {
    for index in 0..rows.len() {
        let (before, rest) = rows.split_at_mut(index);
        let row = &mut rest[0];
        let Some((ours, theirs)) = other_choice(row).filter(|_| introduced_nothing(row)) else { continue };
        let (verdict, reason) = match (row.site.point, row.site.pass) {
            (Point::Argmax, Some(pass)) => judge_choice(before, reference, pass, ours, theirs)?,
            _ => judge_continuation(before, ours, theirs),
        };
        (row.verdict, row.reason) = (verdict, Some(reason));
    }
    Ok(())
}

/// Our token and the reference's, where the ordinary run chose another.
fn other_choice(row: &Row) -> Option<(usize, usize)> {
    let token_point = matches!(row.site.point, Point::Argmax | Point::Generated);
    let worst = row.ordinary.as_ref().filter(|_| token_point)?.worst.as_ref()?;
    (worst.ours != worst.theirs).then_some((worst.ours as usize, worst.theirs as usize))
}

/// Whether the choice from the reference's own logits, where it was looked at, is the reference's.
fn introduced_nothing(row: &Row) -> bool {
    row.introduced.as_ref().is_none_or(|found| found.errors.max_abs == 0.0)
}

fn judge_choice(
    before: &[Row],
    reference: &Dump,
    pass: usize,
    ours: usize,
    theirs: usize,
) -> Result<(Verdict, String)> {
    let site = Site { point: Point::LastLogits, layer: None, pass: Some(pass) };
    let told = format!("chose token {ours}, the reference {theirs}");
    let error = before.iter().find(|row| row.site == site).and_then(|row| row.ordinary.as_ref());
    let (Some(logits), Some(error)) = (aligned(reference, site, None)?, error) else {
        return Ok((Verdict::Fail, format!("{told}; the dump lacks last_logits, which would tell a tie")));
    };
    let (Some(best), Some(other)) = (logits.data.get(theirs), logits.data.get(ours)) else {
        return Ok((Verdict::Fail, format!("{told}, which are not both in its vocabulary")));
    };
    let (margin, error) = (best - other, error.errors.max_abs);
    let told = format!("{told}; their logits are {margin:.1e} apart, the error there is {error:.1e}");
    Ok((if margin < error { Verdict::Tie } else { Verdict::Fail }, told))
}

/// The continuation is tied where each other choice in it is.
fn judge_continuation(before: &[Row], ours: usize, theirs: usize) -> (Verdict, String) {
    let mut other = before.iter().filter(|row| other_choice(row).is_some()).peekable();
    let tied = other.peek().is_some() && other.all(|row| row.verdict == Verdict::Tie);
    let verdict = if tied { Verdict::Tie } else { Verdict::Fail };
    (verdict, format!("token {ours} where the reference has {theirs}"))
}
