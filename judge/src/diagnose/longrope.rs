//! LongRoPE rules: how an engine chooses between short and long factors, as its dump states or its values
//! show.

use crate::align::Selection;
use crate::change::CauseKind;
use crate::check::{Role, Rules};
use crate::diagnose::causes;
use crate::dump::Dump;
use crate::error::{Error, Result};
use crate::model::{LongRope, LongRopeModel, Model};
use crate::plan::Crossing;
use crate::verdict::{Cause, CauseSearch, Finding, Outcome, SiteResult, Verdict};

/// Name of the manifest setting that states the rule.
const SETTING: &str = "longrope";

/// Compares the dump with a model that follows a given rule.
type RuleCheck<'c> = dyn FnMut(&dyn Model, Rules) -> Result<Outcome> + 'c;

/// Checks a dump by the LongRoPE rule that it states. Without a stated rule, the expected values are those of
/// reading the whole sequence at once. If the check fails, other known rules are tried, unless only a part is
/// checked.
///
/// # Errors
/// If the dump states an unknown rule, or `--suppose` is used although tokens are read again; and the errors
/// of `check`.
pub(super) fn check_by_rule(
    model: &dyn Model,
    dump: &Dump,
    rules: Rules,
    is_whole: bool,
    check: &mut RuleCheck,
) -> Result<Outcome> {
    let Some(within) = model.rereads_beyond() else { return check(model, rules) };
    let stated = stated(dump)?;
    let rule = stated.unwrap_or(LongRope::Reread);
    let model = LongRopeModel { model, rule };
    let crossing = Crossing::of(&model, &dump.manifest);
    if crossing.is_some() && !rules.suppositions.is_empty() {
        return Err(Error::Usage(format!(
            "--suppose: the dump extends beyond position {within}, where LongRoPE's factors change and \
             earlier tokens are read again without the supposed change; use a dump that ends before that \
             position"
        )));
    }
    let mut outcome = check(&model, rules)?;
    let mut passes_by = |rule| {
        let model = LongRopeModel { rule, ..model };
        Ok::<_, Error>(check(&model, Rules { causes: false, ..rules })?.verdict)
    };
    let begins_short = dump.manifest.passes.first().is_some_and(|pass| pass.end() <= within);
    match (stated, outcome.verdict) {
        (Some(LongRope::Reread), _) => {}
        (Some(rule), _) => outcome.notes.push(format!("LongRoPE: {}, as the dump states", meaning(rule))),
        _ if !is_whole => {}
        (None, Verdict::Pass) if is_unrestricted(rules.selection) => {
            if let Some(crossing) = crossing
                && passes_by(LongRope::Kept)? != Verdict::Fail
            {
                doubt(&mut outcome, |row| is_over(row, crossing), &undetermined(within));
            }
        }
        (None, Verdict::Fail) if crossing.is_some() && passes_by(LongRope::Kept)? == Verdict::Pass => {
            name_kept(&mut outcome, within, rules.role);
        }
        (None, Verdict::Fail) if begins_short && passes_by(LongRope::Long)? == Verdict::Pass => {
            doubt(&mut outcome, |row| !row.verdict.is_good(), &unstated(LongRope::Long, within));
        }
        _ => {}
    }
    Ok(outcome)
}

/// Returns the rule that the dump states.
fn stated(dump: &Dump) -> Result<Option<LongRope>> {
    let Some(value) = dump.manifest.producer.settings.get(SETTING) else { return Ok(None) };
    let name = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let refuse = |problem| Error::dump(&dump.path, format!("producer.settings.{SETTING}: {problem}"));
    name.parse().map(Some).map_err(refuse)
}

/// Describes how an engine with this LongRoPE rule uses the short and the long factors.
fn meaning(rule: LongRope) -> &'static str {
    match rule {
        LongRope::Reread => {
            "the sequence is read again with the long factors when it outgrows the short ones"
        }
        LongRope::Kept => "cached keys keep the short factors when the sequence outgrows them",
        LongRope::Long => {
            "long factors at every position, as llama.cpp and vLLM choose them by their context"
        }
        LongRope::Short => {
            "short factors at every position, as llama.cpp and vLLM choose them by their context"
        }
    }
}

fn unstated(rule: LongRope, within: usize) -> String {
    format!(
        "explained only by {}; up to {within} tokens, the model uses short factors. If the engine does this \
         on purpose, state producer.settings \"{SETTING}\": \"{rule}\"",
        meaning(rule)
    )
}

fn undetermined(within: usize) -> String {
    format!(
        "undetermined whether the engine kept or recomputed keys cached with LongRoPE's short factors beyond \
         position {within}; dump k_cache or logits there, or state producer.settings \"{SETTING}\": \"reread\""
    )
}

/// Returns true if the selection has no restriction, so everything in the dump was compared.
fn is_unrestricted(selection: &Selection) -> bool {
    let Selection { explicit, layers, passes, positions, .. } = selection;
    !explicit && layers.is_none() && passes.is_none() && positions.is_none()
}

/// Returns true if a row belongs to the pass in which the sequence outgrows LongRoPE's short factors, or to a
/// later pass.
fn is_over(row: &SiteResult, crossing: Crossing) -> bool {
    row.site.pass.is_none_or(|pass| pass >= crossing.pass)
}

/// Makes the matching rows inconclusive, with a reason.
fn doubt(outcome: &mut Outcome, is_doubtful: impl Fn(&SiteResult) -> bool, why: &str) {
    for row in outcome.rows.iter_mut().filter(|row| is_doubtful(row)) {
        (row.verdict, row.reason) = (Verdict::Inconclusive, Some(why.to_owned()));
    }
    outcome.findings.clear();
    outcome.reconsider();
}

/// Adds a finding that explains all failures: cached keys kept the short factors.
fn name_kept(outcome: &mut Outcome, within: usize, role: Role) {
    let failing = outcome.rows.iter().filter(|row| row.verdict == Verdict::Fail);
    let sites: Vec<_> = failing.map(|row| row.site).collect();
    let Some(&first) = sites.first() else { return };
    let what = format!(
        "{} ({within} tokens): every value matches an engine that does not recompute them, like generate() \
         of transformers; drop the cache when the sequence crosses that length. If the engine keeps the keys \
         on purpose, state producer.settings \"{SETTING}\": \"{}\"",
        meaning(LongRope::Kept),
        LongRope::Kept
    );
    let (candidate, reference) = match role {
        Role::Candidate => (LongRope::Kept, LongRope::Reread),
        Role::Reference => (LongRope::Reread, LongRope::Kept),
    };
    let finding = Finding {
        key: Some("original_max_position_embeddings".to_owned()),
        reference: Some(reference.to_string()),
        candidate: Some(candidate.to_string()),
        ..causes::of_everything(CauseKind::CacheStale, first, what, sites)
    };
    for (_, evidence) in &mut outcome.basis.evidence {
        evidence.causes = vec![Cause::once(CauseSearch::Stages, finding.clone())];
    }
    outcome.findings = vec![finding];
}
