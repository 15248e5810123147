//! Causes of a divergence. The search computes operations again from the dump's recorded inputs, with changes
//! from a catalogue.
//!
//! A change is a cause if it explains every value of an operation that the unchanged model does not explain.
//! If several changes do, all of them are reported.

mod bos_token;
mod cause_text;
mod dumps;
mod experts;
mod key_rotation;
mod low_rank;
mod misreading;
mod nonfinite_values;
mod operation_search;
mod parameter_search;
mod parameter_solutions;
mod part_restrictions;
mod pass_restrictions;
mod pattern;
mod provenance;
mod rerun;
mod sequences;
mod site_values;
mod tokens;

pub use tokens::difference as token_difference;
pub(super) use tokens::of_prompt;

use std::collections::BTreeSet;

use crate::catalogue::{OperationChange, PassRestriction, catalogue};
use crate::change::{CauseKind, SiteContext};
use crate::check::{Budget, ContinuationValues, Deadline, RunContext, UnexplainedOperation};
use crate::checkpoint::{Point, Site, ValueKind};
use crate::diagnose::causes::cause_text::CauseText;
use crate::diagnose::causes::operation_search::SearchContext;
use crate::diagnose::causes::pass_restrictions::EffectComparison;
use crate::diagnose::causes::rerun::Rerun;
use crate::dump::Dump;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;
use crate::verdict::{Cause, CauseContent, CauseSearch, Finding, MOST, MOST_PARTS, SiteResult, Verdict};

/// Finds the causes of a dump's deviations from the model. Tries single operations first, then sites with
/// several operations between them and their inputs.
///
/// # Errors
/// The errors of a run of the model.
pub(super) fn of_engine(
    context: &RunContext,
    rows: &[SiteResult],
    unexplained: &[UnexplainedOperation],
    budget: Option<&Budget>,
) -> Result<Vec<Cause>> {
    let deadline = Deadline::new(budget, context.model.dimensions().n_layers);
    let nonfinite = nonfinite_values::of_rows(context, rows, unexplained);
    let once = |finding| Cause::once(CauseSearch::Nonfinite, finding);
    let mut causes: Vec<Cause> = nonfinite.into_iter().map(once).collect();
    // NaN and infinity do not show how a value was computed.
    let is_finite =
        |one: &&UnexplainedOperation| one.meaningful_or(0.0).iter().all(|value| value.is_finite());
    let is_wrong =
        |one: &&UnexplainedOperation| rows.iter().any(|row| row.site == one.site && is_wrong_stage(row));
    let open: Vec<&UnexplainedOperation> = unexplained.iter().filter(is_wrong).filter(is_finite).collect();
    let foreign = sequences::foreign_keys(context.held.dump, &open)?;
    let open: Vec<&UnexplainedOperation> = match &foreign {
        None => open,
        Some(cause) => open.into_iter().filter(|one| !cause.sites.contains(&one.site)).collect(),
    };
    causes.extend(foreign);
    let other_number = experts::of_rows(rows);
    let open: Vec<&UnexplainedOperation> =
        open.into_iter().filter(|one| !experts::follows(rows, one.site)).collect();
    causes.extend(other_number);
    let begun = bos_token::of_rows(context, rows)?;
    let is_begun = |row: &&SiteResult| begun.is_some() && row.site.point.is_of_named_ids();
    let coarse: Vec<&SiteResult> = rows.iter().filter(|row| is_coarse(row) && !is_begun(row)).collect();
    causes.extend(begun);
    if !open.is_empty() || (!coarse.is_empty() && causes.is_empty()) {
        let (operations, traced) =
            (context.operations()?, TracedNumerics::new(context.numerics, context.profile));
        let tokens = context.held.read_tokens();
        let search = SearchContext {
            context,
            traced: &traced,
            operations,
            deadline: &deadline,
            rows,
            tokens: &tokens,
        };
        let first = open.first().map(|one| one.site).or(coarse.first().map(|row| row.site));
        first.into_iter().for_each(|site| deadline.reached(site));
        causes.extend(match (open.is_empty(), misreading::of(&search, &open)?) {
            (true, _) => of_coarse(&search, rows, coarse)?,
            (false, Some(cause)) => vec![cause],
            (false, None) => of_operations(&search, rows, open)?,
        });
    }
    let choices = tokens::of_choices(context, rows)?;
    causes.extend(choices.map(|finding| Cause::once(CauseSearch::Choices, finding)));
    Ok(causes)
}

fn is_wrong_stage(row: &SiteResult) -> bool {
    row.verdict == Verdict::Fail && row.is_single_operation()
}

/// Returns true if a row fails and several operations separate it from its inputs.
fn is_coarse(row: &SiteResult) -> bool {
    let is_real = row.site.point.kind() == ValueKind::Real;
    row.verdict == Verdict::Fail && !row.is_single_operation() && is_real && row.judged().is_some()
}

/// Searches for causes of operations. Causes that several taps show together come first.
fn of_operations(
    search: &SearchContext,
    rows: &[SiteResult],
    open: Vec<&UnexplainedOperation>,
) -> Result<Vec<Cause>> {
    let keys = key_rotation::of(search, &open)?;
    let is_open = |one: &&UnexplainedOperation| !keys.iter().any(|cause| cause.sites.contains(&one.site));
    let open: Vec<&UnexplainedOperation> = open.into_iter().filter(is_open).collect();
    let stages = provenance::of_rows(search, &open, of_stages(search, open.clone())?)?;
    Ok(keys.into_iter().chain(of_sums_before(search, rows, stages)?).collect())
}

/// Searches for causes of single operations. Each change becomes one cause.
fn of_stages(search: &SearchContext, mut open: Vec<&UnexplainedOperation>) -> Result<Vec<Cause>> {
    let mut causes = Vec::new();
    while let Some(&first) = open.first().filter(|_| causes.len() < MOST) {
        search.deadline.reached(first.site);
        let stage = search.stage(first);
        let mut searched = stage.search(&open);
        restrict_operation(search, &open, &mut searched.fits)?;
        if searched.fits.is_empty() && search.deadline.is_over() {
            causes.push(unfinished(search, open.iter().map(|one| one.site).collect()));
            break;
        }
        if let Some(cause) = searched.fits.is_empty().then(|| low_rank::of(search, &open)).flatten() {
            open.retain(|one| !cause.sites.contains(&one.site));
            causes.push(cause);
            continue;
        }
        let is_done = |one: &UnexplainedOperation| match searched.named() {
            Some(changes) => search.stage(one).shares(changes).is_some(),
            // Unexplained operations are reported once per tap.
            None => one.site.point == first.site.point,
        };
        let is_done = |one: &&UnexplainedOperation| one.site == first.site || is_done(one);
        let (done, rest): (Vec<_>, Vec<_>) = open.into_iter().partition(is_done);
        open = rest;
        site_values::merge(search, &mut searched, &done);
        let sites: Vec<Site> = done.iter().map(|one| one.site).collect();
        causes.push(CauseText::of(search, &stage.at()).told(
            CauseSearch::Stages,
            &searched,
            sites,
            Some(first),
        ));
    }
    Ok(causes)
}

/// Restricts changes of an operation to the passes where it is wrong.
fn restrict_operation(
    search: &SearchContext,
    open: &[&UnexplainedOperation],
    fits: &mut Vec<Changes>,
) -> Result<()> {
    let Some(changes) = fits.first() else { return Ok(()) };
    let first = open[0].site;
    let points: Vec<Point> = changes.iter().flat_map(|change| change.taps()).copied().collect();
    let is_wrong = |one: &&&UnexplainedOperation| points.contains(&one.site.point);
    let layers: Option<BTreeSet<usize>> = open.iter().filter(is_wrong).map(|one| one.site.layer).collect();
    let wrong: Vec<Point> = open.iter().filter(is_wrong).map(|one| one.site.point).collect();
    // A change may be made at some of its taps alone.
    let mut has_right_sites = false;
    for points in [points.as_slice(), &wrong] {
        let compared = EffectComparison::new(search, first, points, layers.clone(), ContinuationValues::Held);
        has_right_sites = compared.has_right_sites();
        let settled = if has_right_sites { compared.settled(fits.clone())?.fits } else { Vec::new() };
        if !settled.is_empty() {
            *fits = settled;
            return Ok(());
        }
    }
    // A cache keeps what one pass did to its rows. Any other change that explains every value of an operation is kept,
    // even if other passes are right.
    if let [changes] = fits.as_mut_slice()
        && has_right_sites
        && matches!(first.point, Point::KCache | Point::VCache)
    {
        let passes = first.pass.map(PassRestriction::Pass);
        changes.iter_mut().for_each(|change| *change = change.clone().limited_to(passes));
    }
    Ok(())
}

/// Runs the layers of unexplained operations again, since an unrecorded sum or cache before an operation may be
/// wrong instead of the operation.
fn of_sums_before(search: &SearchContext, rows: &[SiteResult], mut causes: Vec<Cause>) -> Result<Vec<Cause>> {
    let is_open = |site: &Site| causes.iter().any(|cause| cause.is_nothing() && cause.sites.contains(site));
    let open = rows.iter().filter(|row| !starts_at_its_inputs(row) && is_open(&row.site)).collect();
    for found in of_parts(search, open)?.into_iter().filter(|found| !found.is_nothing()) {
        for cause in causes.iter_mut().filter(|cause| cause.is_nothing()) {
            cause.sites.retain(|site| !found.sites.contains(site));
        }
        causes.push(found);
    }
    causes.retain(|cause| !cause.sites.is_empty());
    Ok(causes)
}

/// Returns true if the dump records every input of the operation.
fn starts_at_its_inputs(row: &SiteResult) -> bool {
    let is_held = |points: &[Point]| row.since.iter().any(|start| points.contains(&start.point));
    row.site.point.inputs().iter().all(|points| is_held(points))
}

/// Searches for causes of rows with several operations between recorded values. Tries likely contents of the cache,
/// then the catalogue, then other contents of the cache.
fn of_coarse(search: &SearchContext, rows: &[SiteResult], coarse: Vec<&SiteResult>) -> Result<Vec<Cause>> {
    if let Some(cause) = provenance::of_other_rows(search, &coarse)? {
        return Ok(vec![cause]);
    }
    if let Some(cause) = provenance::of_blocks(search, rows, &coarse, false)? {
        return Ok(vec![cause]);
    }
    let mut causes = of_parts(search, coarse.clone())?;
    if causes.iter().all(|cause| cause.is_nothing())
        && let Some(cause) = provenance::of_blocks(search, rows, &coarse, true)?
    {
        return Ok(vec![cause]);
    }
    if let Some(begun) = provenance::onset(rows, &coarse).map(begins) {
        for cause in &mut causes {
            if let CauseContent::Nothing { what, .. } = &mut cause.told {
                what.push_str(&begun);
            }
        }
    }
    Ok(causes)
}

/// Returns advice for a failure that begins at a pass, after correct passes.
fn begins(first: &SiteResult) -> String {
    let (pass, start) = (first.site.pass.unwrap_or(0), first.positions.start);
    format!(
        "; earlier passes are correct: look at the KV cache that pass {pass} reads (rows that are overwritten or stale), \
         and at what begins at its position {start}"
    )
}

/// Searches for causes by running parts of the model again with changes.
fn of_parts(search: &SearchContext, mut open: Vec<&SiteResult>) -> Result<Vec<Cause>> {
    let mut causes = Vec::new();
    while let Some(&first) = open.first().filter(|_| causes.len() < MOST_PARTS) {
        search.deadline.reached(first.site);
        let searched = if search.deadline.is_over() { None } else { Rerun::new(search, first).search()? };
        if search.deadline.is_over() && searched.as_ref().is_none_or(|searched| searched.fits.is_empty()) {
            causes.push(unfinished(search, open.iter().map(|row| row.site).collect()));
            break;
        }
        let Some(mut searched) = searched else { break };
        if searched.fits.len() > 1 {
            prefer_what_others_tell(search, &mut searched.fits, &open)?;
        }
        let (mut done, mut rest) = (Vec::new(), Vec::new());
        for row in open {
            let is_explained = match searched.named() {
                _ if row.site == first.site => true,
                Some(changes) => Rerun::new(search, row).is_explained_by(changes)?,
                // An unexplained row also covers all later rows.
                None => true,
            };
            if is_explained { done.push(row.site) } else { rest.push(row) }
        }
        open = rest;
        let nothing = Tensor::scalar(0.0);
        let at =
            SiteContext::new(first.site, first.positions.clone(), &nothing, search.traced, search.operations);
        causes.push(CauseText::of(search, &at).told(CauseSearch::Parts, &searched, done, None));
    }
    Ok(causes)
}

/// Returns the cause for sites that the search did not reach within the time limit.
fn unfinished(search: &SearchContext, sites: Vec<Site>) -> Cause {
    let told = CauseContent::Nothing { kind: CauseKind::Unfinished, what: search.deadline.told() };
    Cause::new(CauseSearch::Stages, sites, told)
}

/// If several changes explain the first row, keeps those that explain the most other rows. The others are
/// rows of the same layer in later passes, then rows of later layers.
fn prefer_what_others_tell(
    search: &SearchContext,
    fits: &mut Vec<Changes>,
    open: &[&SiteResult],
) -> Result<()> {
    const OTHERS: usize = 3;
    let first = open[0].site;
    let alike = |row: &&&SiteResult| row.site.point == first.point && row.site != first;
    let mut others: Vec<&SiteResult> = open.iter().filter(alike).copied().collect();
    others.sort_by_key(|row| row.site.layer != first.layer);
    let others: Vec<Rerun> = others.into_iter().take(OTHERS).map(|row| Rerun::new(search, row)).collect();
    let mut counts = Vec::new();
    for changes in fits.iter() {
        let explained = others.iter().map(|row| row.is_explained_by(changes));
        counts.push(explained.collect::<Result<Vec<bool>>>()?.into_iter().filter(|&is_it| is_it).count());
    }
    keep_most(fits, counts);
    Ok(())
}

/// Makes a finding that explains all failing sites.
pub(super) fn of_everything(kind: CauseKind, first: Site, what: String, sites: Vec<Site>) -> Finding {
    Finding::new(kind, first, what).of(sites)
}

/// Finds causes of differences between two dumps.
///
/// # Errors
/// If an array cannot be read.
pub(super) fn of_dumps(candidate: &Dump, reference: &Dump, rows: &[SiteResult]) -> Result<Vec<Cause>> {
    let found = dumps::other_activation(candidate, reference, rows)?;
    Ok(found.into_iter().map(|finding| Cause::once(CauseSearch::Stages, finding)).collect())
}

/// Changes of one operation, applied in this order.
type Changes = Vec<OperationChange>;

/// Keeps the explanations with the largest count.
fn keep_most(fits: &mut Vec<Changes>, counts: Vec<usize>) {
    let most = counts.iter().copied().max();
    let mut counts = counts.into_iter();
    fits.retain(|_| counts.next() == most);
}

/// Sorts changes in catalogue order, configured settings first.
fn in_order(changes: &mut [OperationChange]) {
    changes.sort_by_key(|change| catalogue().position(|entry| entry == change.entry));
}
