//! Log-probabilities of an engine that read the text without the BOS token, or with an extra one.

use crate::change::CauseKind;
use crate::check::{ListedIds, RunContext};
use crate::checkpoint::{Point, Site};
use crate::engine::{self, RunInput};
use crate::error::Result;
use crate::noise::NoiseFloor;
use crate::ops::log_probabilities::log_probabilities;
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::verdict::{Cause, CauseSearch, Finding, SiteResult, Verdict};

/// Minimum number of positions; fewer are not enough evidence.
const FEWEST: usize = 3;

/// Finds out whether a missing or extra BOS token explains failing log-probabilities. Runs our engine on the
/// first pass with the changed first tokens. Only rows without a local error are considered.
///
/// # Errors
/// The errors of a run.
pub(super) fn of_rows(context: &RunContext, rows: &[SiteResult]) -> Result<Option<Cause>> {
    let is_open = |row: &&SiteResult| {
        let is_named = matches!(row.site.point, Point::TokenLogprobs | Point::TopLogprobs);
        is_named && row.verdict == Verdict::Fail && row.local.is_none() && row.site.pass == Some(0)
    };
    let open: Vec<&SiteResult> = rows.iter().filter(is_open).collect();
    let tokens = &context.held.passes()[0].tokens;
    let (Some(first), Some(&begins)) = (open.first(), tokens.first()) else { return Ok(None) };
    if tokens.len() < FEWEST + 1 || context.is_supposed() {
        return Ok(None);
    }
    let twice: Vec<u32> = [&[begins], &tokens[..]].concat();
    let ways = [
        (&tokens[1..], -1, format!("left-out:{begins}")),
        (&twice[..], 1, format!("added:{begins} (present twice)")),
    ];
    for (read, shift, told) in ways {
        if read.len() > context.model.dimensions().context_length {
            continue;
        }
        let mut seen = RunLogits(None);
        engine::run(context.model, context.numerics, &RunInput::greedy(read, 0), &mut seen)?;
        let Some(logits) = seen.0 else { continue };
        let mut explains_all = true;
        for row in &open {
            explains_all &= explains(context, row, &logits, shift)?;
        }
        if !explains_all {
            continue;
        }
        let what = format!(
            "{}: {}: {told}; this explains every position after the first",
            CauseKind::TokensBos,
            CauseKind::TokensBos.meaning()
        );
        let finding = Finding {
            points: open.iter().map(|row| row.site.point).collect(),
            candidate: Some(told),
            verified_on: open.iter().map(|row| row.site.to_string()).collect(),
            ..Finding::new(CauseKind::TokensBos, first.site, what)
        };
        return Ok(Some(Cause::once(CauseSearch::Prompt, finding)));
    }
    Ok(None)
}

/// Returns true if our logits, shifted by `shift` tokens, reproduce every value of a row. The first position is not
/// compared.
fn explains(context: &RunContext, row: &SiteResult, logits: &Tensor, shift: isize) -> Result<bool> {
    let (site, held) = (row.site, context.held);
    let named = ListedIds::of(held, Site { point: Point::Logits, ..site }, logits.row_len())?;
    let picks = named.picks.iter().find(|(other, _)| *other == site);
    let (Some((_, picks)), Some(values)) = (picks, held.values(site, None)?) else { return Ok(false) };
    let values = values.to_vec();
    let all = || (0..picks.rows.len()).collect();
    let rows: Vec<usize> = held.dump.held_rows(site).map_or_else(all, <[usize]>::to_vec);
    let allowed = row.floor.map_or(row.tolerance.max_abs, |floor| NoiseFloor::NEAR * floor.max_abs);
    let known = rows.iter().zip(values.chunks(picks.width())).filter(|(at, _)| **at > 0);
    let known: Vec<_> = known.collect();
    let is_near = |known: &(&usize, &[f64])| {
        let (at, theirs) = (*known.0, known.1);
        let from = at.checked_add_signed(shift).filter(|&from| from < logits.rows());
        let ours =
            from.map(|from| log_probabilities(logits.row(from), picks.row(at), false, named.temperature));
        ours.is_some_and(|ours| {
            ours.iter().zip(theirs).all(|(ours, theirs)| (ours - theirs).abs() <= allowed)
        })
    };
    Ok(known.len() >= FEWEST && known.iter().all(is_near))
}

/// A tap that stores the logits of a one-pass run.
struct RunLogits(Option<Tensor>);

impl Tap for RunLogits {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point == Point::Logits {
            self.0 = Some(value.clone());
        }
        value
    }
}
