//! Token choices: equal, tied, or divergent.
//!
//! A choice made from the reference's own logits must be the reference's. One made in the ordinary run may be
//! another where the two logits are closer together than the error measured there: rounding decides such a
//! choice, and no engine is wrong. Where a stage is, nothing is a tie.

use crate::checkpoint::{Kind, Point, Site};
use crate::compare::{Row, Verdict, aligned};
use crate::dump::Dump;
use crate::engine::Choice;
use crate::error::Result;

/// Judges the token rows of an ordinary run, which the plain comparison has left at what was introduced. `choices` are
/// those of that run; where it is not known, as of a dump, a continuation is judged by the passes in the dump.
pub(super) fn judge_tokens(
    rows: &mut [Row],
    reference: &Dump,
    choices: &[Choice],
    follow_reference: bool,
) -> Result<()> {
    for index in 0..rows.len() {
        let (before, rest) = rows.split_at_mut(index);
        let row = &mut rest[0];
        let Some((ours, theirs)) = other_choice(row) else { continue };
        let judged = match (row.site.point, row.site.pass) {
            (Point::Generated, _) if !choices.is_empty() => {
                Continuation { before, reference, choices }.judge(follow_reference)
            }
            _ if !introduced_nothing(row) => None,
            (Point::Argmax, Some(pass)) => Some(judge_choice(before, reference, pass, ours, theirs)?),
            _ => Some(judge_continuation(before, ours, theirs)),
        };
        if let Some((verdict, reason)) = judged {
            (row.verdict, row.reason) = (verdict, Some(reason));
        }
    }
    refuse_ties_of_a_wrong_run(rows);
    Ok(())
}

/// Where a stage fails, the error that a tie is measured by is no rounding.
fn refuse_ties_of_a_wrong_run(rows: &mut [Row]) {
    let is_wrong = |row: &&Row| row.verdict == Verdict::Fail && row.site.point.kind() == Kind::Real;
    let Some(wrong) = rows.iter().find(is_wrong).map(|row| row.site) else { return };
    for row in rows.iter_mut().filter(|row| row.verdict == Verdict::Tie) {
        let reason = row.reason.take().unwrap_or_default();
        (row.verdict, row.reason) =
            (Verdict::Fail, Some(format!("{reason}; no tie, since {wrong} is wrong")));
    }
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

/// The choices of the ordinary run, made along the reference's tokens, step by step.
struct Continuation<'c> {
    /// The rows of its passes, judged.
    before: &'c [Row],
    reference: &'c Dump,
    choices: &'c [Choice],
}

impl Continuation<'_> {
    /// The first step that differs decides; after ties, if the reference is followed, the first that is none. `None`
    /// where no step differs.
    fn judge(&self, follow_reference: bool) -> Option<(Verdict, String)> {
        let mut differing = self.steps().filter(|(_, choice, theirs)| choice.token != *theirs);
        let first = differing.next().map(|(step, choice, theirs)| self.judge_step(step, choice, theirs))?;
        if first.0 != Verdict::Tie {
            return Some(first);
        }
        let later: Vec<_> =
            differing.map(|(step, choice, theirs)| self.judge_step(step, choice, theirs)).collect();
        if !follow_reference {
            let told = match later.len() {
                0 => first.1,
                more => format!(
                    "{}; {more} later steps differ and are not judged without --follow-reference",
                    first.1
                ),
            };
            return Some((Verdict::Tie, told));
        }
        let ties = 1 + later.iter().filter(|(verdict, _)| *verdict == Verdict::Tie).count();
        let divergence = later.into_iter().find(|(verdict, _)| *verdict != Verdict::Tie);
        let all_tied = (
            Verdict::Tie,
            format!("{}; {ties} of {} steps are ties, the others equal", first.1, self.choices.len()),
        );
        Some(
            divergence.map_or(all_tied, |(verdict, told)| (verdict, format!("{told}; a tie came before it"))),
        )
    }

    /// Each step with our choice and the reference's.
    fn steps(&self) -> impl Iterator<Item = (usize, &Choice, u32)> {
        let theirs = self.reference.manifest.generated.iter().flatten();
        self.choices.iter().zip(theirs).enumerate().map(|(step, (ours, theirs))| (step, ours, *theirs))
    }

    /// As the pass was judged whose choice it is. A pass that the dump does not hold is judged by its own two best
    /// logits and the largest error measured in the run.
    fn judge_step(&self, step: usize, choice: &Choice, theirs: u32) -> (Verdict, String) {
        let Choice { token, second, margin } = *choice;
        let told = format!("step {step}: token {token} where the reference has {theirs}");
        if let Some(row) = self.row_of(step) {
            let why = row.reason.as_deref().unwrap_or("the same in its own dump");
            return (row.verdict, format!("{told}: {why}"));
        }
        let Some(error) = self.largest_error() else {
            return (Verdict::Fail, format!("{told}; the dump lacks last_logits, which would tell a tie"));
        };
        if second != theirs {
            return (Verdict::Fail, format!("{told}, which is not among our two best"));
        }
        let verdict = if f64::from(margin) < error { Verdict::Tie } else { Verdict::Fail };
        (
            verdict,
            format!(
                "{told}; their logits are {margin:.1e} apart, the largest error of the run is {error:.1e}"
            ),
        )
    }

    /// The row of the choice that a pass of the dump ends with.
    fn row_of(&self, step: usize) -> Option<&Row> {
        let manifest = &self.reference.manifest;
        let end = manifest.input.tokens.len() + step;
        let pass = manifest.passes.iter().position(|pass| pass.end() == end)?;
        let site = Site { point: Point::Argmax, layer: None, pass: Some(pass) };
        self.before.iter().find(|row| row.site == site && row.verdict != Verdict::Pass)
    }

    /// The largest error at the logits that choices are made from, if any was measured. NaN proves nothing.
    fn largest_error(&self) -> Option<f64> {
        let logits = self.before.iter().filter(|row| row.site.point == Point::LastLogits);
        let errors = logits.filter_map(|row| Some(row.ordinary.as_ref()?.errors.max_abs));
        errors.reduce(|a, b| if a.is_nan() || a > b { a } else { b })
    }
}
