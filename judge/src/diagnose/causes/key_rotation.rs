//! Keys that attention reads with another rotation than the cache or the tap `k_rope` shows.
//!
//! A port that rotates keys only for the cache records unrotated keys as `k_rope` and rotated keys as `k_cache`.
//! Several taps are then wrong at once, and `k_cache` follows from no recorded value. The operations are therefore
//! computed again without these taps.

use std::collections::HashSet;

use crate::align::{AlignedDump, Selection};
use crate::catalogue::{OperationChange, Supposition, catalogue};
use crate::change::{CauseKind, ChangeValue, SiteContext, distance};
use crate::check::{ContinuationValues, RerunPart, SiteCheck, UnexplainedOperation};
use crate::checkpoint::{Point, Site};
use crate::diagnose::causes::cause_text::CauseText;
use crate::diagnose::causes::operation_search::{SearchContext, SearchResult};
use crate::error::Result;
use crate::exact::node_of;
use crate::ops::rope::exact::Rotary;
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::verdict::{Cause, CauseSearch};

/// Taps of keys, which the hypotheses do not read.
const KEYS: [Point; 2] = [Point::KRope, Point::KCache];

/// Taps that the rotation of keys changes.
const CHANGED: [Point; 5] =
    [Point::KRope, Point::KCache, Point::AttnScores, Point::AttnWeights, Point::AttnContext];

/// Largest relative error of a key that still matches.
const NEAR: f64 = 0.01;

/// Finds a reading of keys that makes every wrong operation between keys and attention right.
///
/// # Errors
/// The errors of a run of the model.
pub(super) fn of(search: &SearchContext, open: &[&UnexplainedOperation]) -> Result<Option<Cause>> {
    let changed: Vec<&UnexplainedOperation> =
        open.iter().copied().filter(|one| CHANGED.contains(&one.site.point)).collect();
    if changed.iter().all(|one| KEYS.contains(&one.site.point)) {
        return Ok(None);
    }
    let dump = search.context.held.dump;
    let is_of_keys = |tap: &str| tap.parse::<Point>().is_ok_and(|point| KEYS.contains(&point));
    let without = dump.read_as(|row| (!is_of_keys(&row.tap)).then(|| row.clone()))?;
    let held = AlignedDump::new(&without)?;
    for change in readings() {
        if search.deadline.is_over() {
            break;
        }
        let mut keys = KeyRows::default();
        let [right, wrong] = judged_with(search, &held, &change, &mut keys)?;
        let is_new = |site: &Site| !open.iter().any(|one| one.site == *site);
        let stays = |site: &Site| CHANGED.contains(&site.point) || is_new(site);
        let is_right = |one: &&UnexplainedOperation| right.contains(&one.site) || keys.explain(one);
        if wrong.iter().any(stays) || !changed.iter().all(is_right) {
            continue;
        }
        let sites: Vec<Site> = changed.iter().map(|one| one.site).collect();
        let shown: Vec<Point> =
            KEYS.into_iter().filter(|key| sites.iter().any(|site| site.point == *key)).collect();
        if !shown.is_empty() {
            return Ok(Some(as_recorded(search, &change, &shown, sites)));
        }
        let nothing = Tensor::scalar(0.0);
        let positions = search.context.held.positions(sites[0]);
        let at = SiteContext::new(sites[0], positions, &nothing, search.traced, search.operations);
        let searched = SearchResult { fits: vec![vec![change]], excluded: Vec::new() };
        return Ok(Some(CauseText::of(search, &at).told(CauseSearch::Stages, &searched, sites, None)));
    }
    Ok(None)
}

/// Describes a reading of keys in a dump whose own taps of keys show other keys than attention reads. A run with the
/// change alone would not match these taps.
fn as_recorded(search: &SearchContext, change: &OperationChange, shown: &[Point], sites: Vec<Site>) -> Cause {
    let role = search.context.role.name();
    let reading = change.meaning().unwrap_or_default();
    let holds = if shown.len() == 1 { "holds" } else { "hold" };
    let names: Vec<&str> = shown.iter().map(|point| point.name()).collect();
    let what = format!(
        "cache_rotation: in the {role}, {reading} ({change}); its {} {holds} keys of another rotation than \
         attention reads",
        names.join(" and ")
    );
    Cause::described(CauseSearch::Stages, CauseKind::CacheRotation, sites, what)
}

/// Returns the catalogue's changes of how cached keys are rotated.
fn readings() -> Vec<OperationChange> {
    let entry = catalogue().find(|entry| entry.kind == CauseKind::CacheRotation);
    let words = entry.into_iter().flat_map(|entry| entry.takes.split('|').map(move |word| (entry, word)));
    words.map(|(entry, word)| OperationChange::new(entry, ChangeValue::word(word))).collect()
}

/// Returns the sites that rounding explains in a run with a change, and the sites that it does not explain.
fn judged_with(
    search: &SearchContext,
    held: &AlignedDump,
    change: &OperationChange,
    keys: &mut KeyRows,
) -> Result<[HashSet<Site>; 2]> {
    let context = search.context.along(held);
    let everything = Selection::everything();
    let comparison =
        context.comparing_of(&everything, ContinuationValues::Held).evaluating(context.may_differ);
    let supposed = [Supposition::everywhere(change.clone())];
    let checks = context.rerun(&RerunPart::All, held.passes().len(), &supposed, comparison, keys)?;
    let judged = |check: SiteCheck| Some((check.site, check.explained?.side(context.role).is_explained()));
    let (right, wrong): (Vec<_>, Vec<_>) =
        checks.into_iter().filter_map(judged).partition(|(_, is_right)| *is_right);
    Ok([right, wrong].map(|all| all.into_iter().map(|(site, _)| site).collect()))
}

/// A tap that collects the keys of every pass before and after RoPE, each `[T, Hkv, D]`.
#[derive(Default)]
struct KeyRows {
    found: Vec<(Site, [Tensor; 2])>,
}

impl Tap for KeyRows {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point == Point::KRope
            && let [whole] = value.origins()
            && let Some(rotary) = node_of(whole)
            && let Some(Rotary { x, .. }) = rotary.operation()
        {
            let known = [x.clone(), value.clone()].map(|rows| rows.with_origins(Vec::new()));
            self.found.push((site, known));
        }
        value
    }
}

impl KeyRows {
    /// Returns true if each row of a tap of keys is the key of its position, before or after RoPE.
    fn explain(&self, one: &UnexplainedOperation) -> bool {
        if !KEYS.contains(&one.site.point) {
            return false;
        }
        let is_read = |site: &Site| match one.site.point {
            Point::KRope => site.pass == one.site.pass,
            _ => site.pass <= one.site.pass,
        };
        let mut passes: Vec<&(Site, [Tensor; 2])> = self.found.iter().collect();
        passes.retain(|(site, _)| site.layer == one.site.layer && is_read(site));
        passes.sort_by_key(|(site, _)| site.pass);
        let known: Vec<[&[f32]; 2]> = passes
            .iter()
            .flat_map(|(_, keys)| (0..keys[0].rows()).map(|row| [keys[0].row(row), keys[1].row(row)]))
            .collect();
        let rows = one.traced.rows();
        let Some(known) = known.len().checked_sub(rows).map(|first| &known[first..]) else { return false };
        let width = one.traced.row_len();
        let is_key = |(theirs, keys): (&[f64], &[&[f32]; 2])| {
            keys.iter().any(|key| distance(&Tensor::new(&[width], key.to_vec()), theirs) < NEAR)
        };
        one.theirs.chunks(width).zip(known).all(is_key)
    }
}
