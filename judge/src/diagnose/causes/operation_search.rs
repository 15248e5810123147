//! Searches for changes of one operation by computing it again from the dump's inputs.

use std::collections::BTreeSet;

use crate::catalogue::{OperationChange, catalogue};
use crate::change::{CatalogueEntry, CauseKind, ChangeValue, ModelOperations, SiteContext, distance};
use crate::check::{Deadline, RunContext, UnexplainedOperation};
use crate::diagnose::causes::part_restrictions::WrongPart;
use crate::diagnose::causes::{Changes, in_order, keep_most};
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;
use crate::verdict::SiteResult;

/// Number of best single changes that are combined with a second change.
const COMBINED: usize = 8;

/// Number of best single changes that an exhaustive search combines.
const MOST_COMBINED: usize = 32;

/// A change is not evaluated if its result is this many times farther from the dump's values than the
/// unchanged result.
const FARTHER: f64 = 1.1;

/// Maximum number of values of an operation that is computed with two changes at once.
const MOST_VALUES: usize = 1 << 22;

/// Shared data for computing operations again with changes.
pub(super) struct SearchContext<'s> {
    pub(super) context: &'s RunContext<'s>,
    pub(super) traced: &'s TracedNumerics<'s>,
    pub(super) operations: &'s ModelOperations,
    pub(super) deadline: &'s Deadline<'s>,
    /// All judged rows of the dump.
    pub(super) rows: &'s [SiteResult],
    /// All tokens that the dump's engine read.
    pub(super) tokens: &'s [u32],
}

impl<'s> SearchContext<'s> {
    pub(super) fn stage(&'s self, unexplained: &'s UnexplainedOperation) -> OperationSearch<'s> {
        OperationSearch { search: self, unexplained }
    }
}

/// Searches for changes of one operation.
pub(super) struct OperationSearch<'s> {
    search: &'s SearchContext<'s>,
    unexplained: &'s UnexplainedOperation,
}

/// The result of a search for changes.
#[derive(Default)]
pub(super) struct SearchResult {
    /// Alternative explanations, the most likely first.
    pub(super) fits: Vec<Changes>,
    /// Kinds of causes that were tried and do not explain the operation.
    pub(super) excluded: Vec<CauseKind>,
}

impl SearchResult {
    /// Makes a result from the fitting changes and all candidates. If the time limit ended the search, no kind is
    /// excluded, since some candidates were not tried.
    pub(super) fn new<'c>(
        fits: Vec<Changes>,
        candidates: impl Iterator<Item = &'c OperationChange>,
        deadline: &Deadline,
    ) -> Self {
        let is_over = deadline.is_over();
        let tried = candidates.filter(|_| !is_over);
        let fit: Vec<CauseKind> = fits.iter().flatten().map(|change| change.entry.kind).collect();
        let tried: BTreeSet<CauseKind> = tried.map(|change| change.entry.kind).collect();
        Self { excluded: tried.into_iter().filter(|kind| !fit.contains(kind)).collect(), fits }
    }

    /// Returns the most likely explanation of the operation, if any.
    pub(super) fn named(&self) -> Option<&[OperationChange]> {
        self.fits.first().map(Vec::as_slice)
    }
}

impl<'s> OperationSearch<'s> {
    /// Returns the unchanged operation at its site.
    pub(super) fn at(&self) -> SiteContext<'_> {
        let site = self.unexplained.site;
        let SearchContext { context, traced, operations, .. } = *self.search;
        let is_turned = context.held.pairing() != context.model.dimensions().rope_pairing;
        SiteContext::new(site, context.held.positions(site), &self.unexplained.traced, traced, operations)
            .turned(is_turned)
            .reading(self.search.tokens)
    }

    /// Returns true if these changes, applied in order, explain every value.
    pub(super) fn is_explained_by(&self, changes: &[OperationChange]) -> bool {
        let mut value = self.unexplained.traced.clone();
        for change in changes {
            let Some(changed) = change.compute(&self.at().with(&value)) else { return false };
            value = changed;
        }
        self.explains(&value)
    }

    /// Returns the changes that explain every value of the operation, if the operation has the same fault as another:
    /// the same changes, or a change of the same kind at another tap. The scale of a cache may differ from site to
    /// site.
    pub(super) fn shares(&self, changes: &[OperationChange]) -> Option<Changes> {
        if self.is_explained_by(changes) {
            return Some(changes.to_vec());
        }
        let ([change], at) = (changes, self.at()) else { return None };
        let point = at.site.point;
        let mut same =
            catalogue().filter(|entry| entry.kind == change.entry.kind && entry.at.contains(&point));
        same.find_map(|entry| {
            let values = entry.may_take(&change.value).then(|| change.value.clone()).into_iter();
            let read = match entry.kind {
                CauseKind::CacheScale => entry.read_at(&at, &self.unexplained.meaningful()),
                _ => Vec::new(),
            };
            let restricted = |value| {
                let change = OperationChange { point: None, ..change.clone() };
                vec![OperationChange { entry, value, ..change }]
            };
            let mut changes = values.chain(read).map(restricted);
            changes.find(|changes| self.is_explained_by(changes))
        })
    }

    fn explains(&self, computed: &Tensor) -> bool {
        let judged = self.unexplained.judge(computed, self.search.context.may_differ);
        judged.is_some_and(|judged| judged.dump.is_explained())
    }

    /// Tries the catalogue. Of several changes that explain the operation, returns those that explain the
    /// most of `others`.
    pub(super) fn search(&self, others: &[&UnexplainedOperation]) -> SearchResult {
        let theirs = self.unexplained.meaningful();
        let at = self.at();
        let tried = candidates(&at, &theirs);
        // A change is rejected if its result is farther from the dump's values. This test needs no evaluation
        // of rounding.
        let farthest = FARTHER * distance(&self.unexplained.traced, &theirs);
        let near = tried.iter().filter(|tried| !(tried.distance > farthest));
        let mut fits: Vec<Changes> = near
            .filter(|tried| !self.search.deadline.is_over() && self.explains(&tried.value))
            .map(|tried| vec![tried.change.clone()])
            .collect();
        if fits.is_empty() {
            fits = self.of_parts(&at, &theirs, farthest);
        }
        if fits.is_empty() && (theirs.len() <= MOST_VALUES || self.search.deadline.is_exhaustive()) {
            fits = self.pairs(&at, &theirs, &tried);
        }
        // Other sites of the same tap can decide between changes that all explain the first site. So can other taps,
        // between values of one kind.
        self.decide(&mut fits, self.others(others).into_iter());
        let same = |other: &&&UnexplainedOperation| other.site.point == self.unexplained.site.point;
        let is_of_one_kind = |fits: &[Changes]| {
            fits.windows(2).all(|two| {
                two[0].len() == 1 && two[1].len() == 1 && two[0][0].entry.kind == two[1][0].entry.kind
            })
        };
        if is_of_one_kind(&fits) {
            self.decide(&mut fits, others.iter().filter(|other| !same(other)).copied());
        }
        SearchResult::new(fits, tried.iter().map(|tried| &tried.change), self.search.deadline)
    }

    /// Returns changes that explain the operation if they apply only to its wrong part.
    fn of_parts(&self, at: &SiteContext, theirs: &[f64], farthest: f64) -> Vec<Changes> {
        let mut fits = Vec::new();
        for part in WrongPart::all(at, self.unexplained) {
            let values = part.values(theirs);
            let known = catalogue().filter(|entry| entry.at.contains(&at.site.point));
            for change in known.flat_map(|entry| changes_of(entry, at, &values)) {
                if self.search.deadline.is_over() {
                    return fits;
                }
                let change = part.restrict(change);
                let value = change.compute(at).filter(|value| distance(value, theirs) <= farthest);
                if value.is_some_and(|value| self.explains(&value)) {
                    fits.push(vec![change]);
                }
            }
            if !fits.is_empty() {
                break;
            }
        }
        fits
    }

    /// Returns some other operations of the same tap: later passes of the same layer, and other layers.
    fn others<'o>(&self, others: &[&'o UnexplainedOperation]) -> Vec<&'o UnexplainedOperation> {
        const EACH: usize = 4;
        let own = self.unexplained.site;
        let same = others.iter().copied().filter(|other| other.site.point == own.point && other.site != own);
        let (in_layer, elsewhere): (Vec<_>, Vec<_>) = same.partition(|other| other.site.layer == own.layer);
        in_layer.into_iter().take(EACH).chain(elsewhere.into_iter().take(EACH)).collect()
    }

    /// Keeps the changes that explain the most of a few other operations.
    fn decide<'o>(&self, fits: &mut Vec<Changes>, others: impl Iterator<Item = &'o UnexplainedOperation>) {
        if fits.len() < 2 {
            return;
        }
        let others: Vec<&UnexplainedOperation> = others.take(8).collect();
        let is_explained = |other: &&&UnexplainedOperation, changes: &Changes| {
            OperationSearch { search: self.search, unexplained: other }.shares(changes).is_some()
        };
        let explained =
            |changes: &Changes| others.iter().filter(|other| is_explained(other, changes)).count();
        let counts = fits.iter().map(explained).collect();
        keep_most(fits, counts);
    }

    /// Returns pairs of changes that explain the operation. Combines each of the nearest single changes with
    /// every other change.
    fn pairs(&self, at: &SiteContext, theirs: &[f64], singles: &[OperationTrial]) -> Vec<Changes> {
        let mut nearest: Vec<&OperationTrial> = singles.iter().collect();
        nearest.sort_by(|a, b| a.distance.total_cmp(&b.distance));
        nearest.truncate(if self.search.deadline.is_exhaustive() { MOST_COMBINED } else { COMBINED });
        let mut fits: Vec<Changes> = Vec::new();
        for one in nearest {
            if self.search.deadline.is_over() {
                break;
            }
            for other in candidates(&at.with(&one.value), theirs) {
                let is_known = |known: &Changes| known.contains(&one.change) && known.contains(&other.change);
                let is_same = other.change.entry.kind == one.change.entry.kind;
                // Two changes that cancel each other do not count.
                let comes_nearer =
                    other.distance < one.distance / 10.0 && other.value != self.unexplained.traced;
                if !is_same && comes_nearer && !fits.iter().any(is_known) && self.explains(&other.value) {
                    let mut both = vec![one.change.clone(), other.change];
                    in_order(&mut both);
                    fits.push(both);
                }
            }
        }
        fits
    }
}

/// A change and the result of the operation with it.
struct OperationTrial {
    change: OperationChange,
    value: Tensor,
    /// Distance between `value` and the dump's values.
    distance: f64,
}

/// Returns all changes that apply at a site. Their parameters are read from the values there or are common
/// settings.
fn candidates(at: &SiteContext, theirs: &[f64]) -> Vec<OperationTrial> {
    let known = catalogue().filter(|entry| entry.at.contains(&at.site.point));
    known.flat_map(|entry| of_entry(entry, at, theirs)).collect()
}

fn of_entry(entry: &'static CatalogueEntry, at: &SiteContext, theirs: &[f64]) -> Vec<OperationTrial> {
    let tried = |change: OperationChange| {
        let value = change.compute(at)?;
        let distance = distance(&value, theirs);
        (value != *at.value && distance.is_finite()).then_some(OperationTrial { change, value, distance })
    };
    changes_of(entry, at, theirs).into_iter().filter_map(tried).collect()
}

/// Returns the changes of an entry with the values that are read from an operation, then with common values.
fn changes_of(entry: &'static CatalogueEntry, at: &SiteContext, theirs: &[f64]) -> Vec<OperationChange> {
    let mut values: Vec<ChangeValue> = Vec::new();
    for value in entry.read_at(at, theirs).into_iter().chain(entry.usual_at(at)) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values.into_iter().map(|value| OperationChange::new(entry, value)).collect()
}
