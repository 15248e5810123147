//! Causes in tokens: wrong prompt tokens, and wrong choices of tokens from logits.

use crate::align::logits_after;
use crate::change::CauseKind;
use crate::check::{Role, RunContext};
use crate::checkpoint::{Point, Site};
use crate::dump::Pass;
use crate::error::Result;
use crate::verdict::{Cause, CauseSearch, Finding, SiteResult, Verdict};

/// Compares the tokenizer's tokens of a prompt with the known tokens, and describes the difference.
pub(in crate::diagnose) fn of_prompt(site: Site, own: &[u32], known: &[u32]) -> Option<Cause> {
    let (kind, value) = difference(own, known)?;
    let finding = Finding {
        reference: Some(listed(known)),
        candidate: Some(if kind == CauseKind::TokensPrompt { listed(own) } else { value.clone() }),
        ..Finding::new(kind, site, format!("{kind}: {}: {value}", kind.meaning()))
    };
    Some(Cause::once(CauseSearch::Prompt, finding))
}

/// Describes how tokens differ from the known tokens: in the BOS token alone, or elsewhere.
pub fn difference(own: &[u32], known: &[u32]) -> Option<(CauseKind, String)> {
    Some(match (own, known) {
        _ if own == known => return None,
        ([first, rest @ ..], _) if rest == known && known.first() == Some(first) => {
            (CauseKind::TokensBos, format!("added:{first} (present twice)"))
        }
        ([first, rest @ ..], _) if rest == known => (CauseKind::TokensBos, format!("added:{first}")),
        (_, [first, rest @ ..]) if rest == own => (CauseKind::TokensBos, format!("left-out:{first}")),
        ([own, rest @ ..], [known, others @ ..]) if rest == others => {
            (CauseKind::TokensBos, format!("{own} instead of {known}"))
        }
        _ => {
            let first = own.iter().zip(known).take_while(|(own, known)| own == known).count();
            let told = format!(
                "{} tokens, expected {}; the first difference is at token {first}",
                own.len(),
                known.len()
            );
            (CauseKind::TokensPrompt, told)
        }
    })
}

fn listed(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Finds the rule by which the dump's engine chooses tokens, if it does not choose the largest of its own
/// logits.
pub(super) fn of_choices(context: &RunContext, rows: &[SiteResult]) -> Result<Option<Finding>> {
    let fails = |row: &&SiteResult| {
        matches!(row.site.point, Point::Argmax | Point::Generated) && row.verdict == Verdict::Fail
    };
    let Some(row) = rows.iter().find(fails) else { return Ok(None) };
    let mut told: Vec<(usize, CauseKind, Vec<ChoiceRule>)> = Vec::new();
    for (position, token) in context.held.choices.iter() {
        let Some(logits) = logits_after(context.held.dump, position)? else { continue };
        let Some(mut found) = choosing(&logits, token as usize) else { continue };
        found.extend(of_another_row(context, position, token)?);
        let kind = if matches!(found.first(), Some(ChoiceRule::LaterOfTie | ChoiceRule::OtherOfTie)) {
            CauseKind::SamplingTie
        } else {
            CauseKind::Sampling
        };
        told.push((position, kind, found));
    }
    // Keeps the rules that fit all non-greedy choices.
    let Some((_, kind, first)) = told.first() else { return Ok(None) };
    let common: Vec<&ChoiceRule> =
        first.iter().filter(|one| told.iter().all(|(.., others)| others.contains(one))).collect();
    let (kind, words) = match common.split_first() {
        Some((ChoiceRule::Row(_), [])) => (CauseKind::LogitsRow, vec![common[0].told()]),
        Some(_) => (*kind, common.iter().map(|one| one.told()).collect()),
        None => (CauseKind::Sampling, vec!["a token whose logit is not the largest".to_owned()]),
    };
    let positions: Vec<String> = told.iter().map(|(position, ..)| format!("position {position}")).collect();
    let (dump, own) =
        (context.role.name(), "the largest logit, and the lowest id if several are equal".to_owned());
    let theirs = words[0].clone();
    let what =
        format!("{kind}: among its own logits, the {dump} picks {}; after {}", theirs, positions.join(", "));
    let (candidate, reference) = match context.role {
        Role::Candidate => (theirs, own),
        Role::Reference => (own, theirs),
    };
    Ok(Some(Finding {
        reference: Some(reference),
        candidate: Some(candidate),
        verified_on: positions,
        remaining: words[1..].to_vec(),
        ..Finding::new(kind, row.site, what)
    }))
}

/// A rule by which an engine chose a token other than the greedy one.
#[derive(Clone, Debug, PartialEq)]
enum ChoiceRule {
    LaterOfTie,
    OtherOfTie,
    Smallest,
    LargestMagnitude,
    Beside(i64),
    Rank(usize),
    Row(&'static str),
}

impl ChoiceRule {
    fn told(&self) -> String {
        match self {
            ChoiceRule::LaterOfTie => "the highest index of a tie".to_owned(),
            ChoiceRule::OtherOfTie => "one of a tie, neither the first nor the last".to_owned(),
            ChoiceRule::Smallest => "the smallest".to_owned(),
            ChoiceRule::LargestMagnitude => "the largest in magnitude".to_owned(),
            ChoiceRule::Beside(by) => format!("the index of the largest {by:+}"),
            ChoiceRule::Rank(rank) => format!("number {rank} in descending order"),
            ChoiceRule::Row(row) => format!("the largest logit of another token's row ({row})"),
        }
    }
}

/// Returns all rules that fit a choice. `None` if the choice is greedy or the token is outside the logits. Empty if no rule fits.
fn choosing(logits: &[f64], token: usize) -> Option<Vec<ChoiceRule>> {
    let (&chosen, best) = (logits.get(token)?, largest(logits));
    if token == best {
        return None;
    }
    let mut found = Vec::new();
    if chosen == logits[best] {
        let last = logits.iter().rposition(|&logit| logit == logits[best]);
        return Some(vec![if last == Some(token) { ChoiceRule::LaterOfTie } else { ChoiceRule::OtherOfTie }]);
    }
    if logits.iter().all(|&logit| !(logit < chosen)) {
        found.push(ChoiceRule::Smallest);
    }
    if logits.iter().all(|&logit| !(logit.abs() > chosen.abs())) {
        found.push(ChoiceRule::LargestMagnitude);
    }
    let by = token as i64 - best as i64;
    if by.abs() == 1 {
        found.push(ChoiceRule::Beside(by));
    }
    let above = logits.iter().filter(|&&logit| logit > chosen).count();
    if above < 8 {
        found.push(ChoiceRule::Rank(above + 1));
    }
    Some(found)
}

/// Returns the index of the largest logit, the first one if several are equal.
fn largest(logits: &[f64]) -> usize {
    let better = |best: usize, index: usize| if logits[index] > logits[best] { index } else { best };
    (0..logits.len()).fold(0, better)
}

/// Detects a greedy choice from the logits of a different token of the pass: the first, or the one before.
fn of_another_row(context: &RunContext, position: usize, token: u32) -> Result<Option<ChoiceRule>> {
    let passes = context.held.passes();
    let Some(pass) = Pass::ending(passes, position + 1).map(|pass| &passes[pass]) else { return Ok(None) };
    for (name, other) in [("first", pass.position), ("one-before", position.saturating_sub(1))] {
        let is_of_pass = (pass.position..position).contains(&other);
        let logits = if is_of_pass { logits_after(context.held.dump, other)? } else { None };
        if logits.is_some_and(|logits| largest(&logits) == token as usize) {
            return Ok(Some(ChoiceRule::Row(name)));
        }
    }
    Ok(None)
}
