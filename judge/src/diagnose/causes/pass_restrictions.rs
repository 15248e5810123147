//! Passes to which a cause is restricted: a change must not alter correct sites of other passes.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::align::Selection;
use crate::catalogue::{OperationChange, PassRestriction, Supposition};
use crate::check::{ArrayComparison, ContinuationValues, RerunPart, SiteCheck};
use crate::checkpoint::{Point, Site};
use crate::diagnose::causes::Changes;
use crate::diagnose::causes::operation_search::SearchContext;
use crate::error::Result;
use crate::noise::NoiseFloor;
use crate::verdict::{SiteResult, Verdict};

/// Sites on which the effects of changes are compared.
pub(super) struct EffectComparison<'s> {
    search: &'s SearchContext<'s>,
    first: Site,
    rows: Vec<&'s SiteResult>,
    /// Layers in which the changes are made; `None` for all.
    layers: Option<BTreeSet<usize>>,
    go_on: ContinuationValues,
}

/// Explanations, each restricted to the passes in which it explains wrong sites.
#[derive(Default)]
pub(super) struct SettledChanges {
    /// Alternative explanations; changes in all passes first.
    pub(super) fits: Vec<Changes>,
    /// Number of wrong sites that each alternative explains.
    pub(super) explained: usize,
    /// True if each alternative explains every wrong site.
    pub(super) is_complete: bool,
}

impl SettledChanges {
    /// Adds explanations and sorts them, simplest first: changes in all passes, then in passes of one kind, then from a
    /// position on.
    fn add(&mut self, fits: impl Iterator<Item = Changes>) {
        for fit in fits {
            if !self.fits.contains(&fit) {
                self.fits.push(fit);
            }
        }
        let rank = |fit: &Changes| match fit[0].passes {
            None => 0,
            Some(PassRestriction::From(_)) => 2,
            Some(_) => 1,
        };
        self.fits.sort_by_key(rank);
    }

    /// Merges other explanations: replaces the present ones if `other` explains more sites, and adds `other` if it
    /// explains equally many.
    pub(super) fn take(&mut self, other: Self) {
        match other.explained.cmp(&self.explained) {
            _ if self.fits.is_empty() => *self = other,
            Ordering::Greater => *self = other,
            Ordering::Equal => self.add(other.fits.into_iter()),
            Ordering::Less => {}
        }
    }

    /// Returns true if no simpler explanation is possible: the first one explains every wrong site, and is not
    /// restricted to passes from a position on.
    pub(super) fn is_simple(&self) -> bool {
        let is_plain = |fit: &Changes| !matches!(fit[0].passes, Some(PassRestriction::From(_)));
        self.is_complete && self.fits.first().is_some_and(is_plain)
    }
}

/// Effect of changes on the compared sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PassEffect {
    /// Number of correct sites that become wrong.
    broken: usize,
    /// Number of wrong sites that become correct.
    explained: usize,
    /// Number of wrong sites.
    wrong: usize,
}

impl<'s> EffectComparison<'s> {
    /// Selects the judged sites at the taps `points` in the layers `layers`.
    pub(super) fn new(
        search: &'s SearchContext<'s>,
        first: Site,
        points: &[Point],
        layers: Option<BTreeSet<usize>>,
        go_on: ContinuationValues,
    ) -> Self {
        let is_here = |layer: Option<usize>| match (&layers, layer) {
            (Some(layers), Some(layer)) => layers.contains(&layer),
            _ => true,
        };
        let is_compared = |row: &&SiteResult| {
            let site = row.site;
            // In a run from the tokens on, a site that is judged by its recorded inputs is not comparable.
            let is_comparable = go_on == ContinuationValues::Held || !row.is_single_operation();
            points.contains(&site.point) && is_here(site.layer) && row.judged().is_some() && is_comparable
        };
        let rows = search.rows.iter().filter(is_compared).collect();
        Self { search, first, rows, layers, go_on }
    }

    /// Returns true if some compared site is correct.
    pub(super) fn has_right_sites(&self) -> bool {
        self.rows.iter().any(|row| is_right(row))
    }

    /// Restricts each change to the passes in which it explains wrong sites. Returns changes that alter no correct
    /// site, those that explain the most wrong sites first, followed by changes that the time limit left untested.
    pub(super) fn settled(&self, fits: Vec<Changes>) -> Result<SettledChanges> {
        let mut settled: Vec<(Changes, PassEffect)> = Vec::new();
        let mut untested: Vec<Changes> = Vec::new();
        for fit in fits {
            match self.restricted(&fit)? {
                Some(known) => settled.push(known),
                None if self.search.deadline.is_over() => untested.push(fit),
                None => {}
            }
        }
        let Some((_, best)) = settled.iter().max_by_key(|(_, effect)| effect.explained) else {
            return Ok(SettledChanges { fits: untested, ..SettledChanges::default() });
        };
        let (explained, is_complete) = (best.explained, best.explained == best.wrong);
        settled.retain(|(_, effect)| effect.explained == explained);
        let mut all = SettledChanges { fits: Vec::new(), explained, is_complete };
        all.add(settled.into_iter().map(|(fit, _)| fit));
        all.fits.extend(untested);
        Ok(all)
    }

    /// Restricts an explanation to the passes in which it explains the most wrong sites and alters no correct site.
    fn restricted(&self, fit: &Changes) -> Result<Option<(Changes, PassEffect)>> {
        let mut best: Option<(Changes, PassEffect)> = None;
        for passes in self.passes() {
            if self.search.deadline.is_over() {
                break;
            }
            let limited: Changes = fit.iter().map(|change| limited(change, passes)).collect();
            let Some(effect) = self.effect(&limited)?.filter(|effect| effect.broken == 0) else { continue };
            if best.as_ref().is_none_or(|(_, known)| effect.explained > known.explained) {
                best = Some((limited, effect));
            }
            if effect.explained == effect.wrong {
                break;
            }
        }
        Ok(best)
    }

    /// Returns the pass restrictions to try, widest first: all passes, passes of the same kind (prompt, chunk or
    /// decode) as that of the first wrong site, and all passes from that site on.
    fn passes(&self) -> Vec<Option<PassRestriction>> {
        let held = self.search.context.held;
        let Some(pass) = self.first.pass.filter(|_| held.passes().len() > 1) else { return vec![None] };
        let positions = held.positions(Site { point: Point::Embed, layer: None, ..self.first });
        let mut passes = vec![None, Some(PassRestriction::of_pass(pass, positions.len()))];
        passes.extend((pass > 0).then_some(Some(PassRestriction::From(positions.start))));
        passes
    }

    /// Runs the model with changes. Returns `None` if the first wrong site stays wrong.
    fn effect(&self, changes: &Changes) -> Result<Option<PassEffect>> {
        let context = self.search.context;
        let supposed: Vec<Supposition> = changes.iter().map(|change| self.supposed(change.clone())).collect();
        let checkpoints: BTreeSet<_> = self.rows.iter().map(|row| row.checkpoint()).collect();
        let checkpoints = checkpoints.into_iter().collect();
        let selection = Selection { checkpoints, ..Selection::everything() };
        let comparison = context.comparing_of(&selection, self.go_on).evaluating(context.may_differ);
        let passes = context.held.passes().len();
        let checks = context.rerun(&RerunPart::All, passes, &supposed, comparison, &mut ())?;
        let mut effect = PassEffect { broken: 0, explained: 0, wrong: 0 };
        for row in &self.rows {
            let check = checks.iter().find(|check| check.site == row.site && check.found.is_some());
            let Some(check) = check else { continue };
            let is_explained = self.is_explained(row, check);
            match is_right(row) {
                true => effect.broken += usize::from(!is_explained),
                false => {
                    effect.wrong += 1;
                    effect.explained += usize::from(is_explained);
                }
            }
            if row.site == self.first && !is_explained {
                return Ok(None);
            }
        }
        Ok(Some(effect))
    }

    fn supposed(&self, change: OperationChange) -> Supposition {
        let everywhere = Supposition::everywhere(change);
        match &self.layers {
            Some(layers) => everywhere.in_layers(layers.iter().copied()),
            None => everywhere,
        }
    }

    /// Returns true if rounding explains a site. A correct site may have an error as large as its bound.
    fn is_explained(&self, row: &SiteResult, check: &SiteCheck) -> bool {
        let role = self.search.context.role;
        if check.explained.as_ref().is_some_and(|explained| explained.side(role).is_explained()) {
            return true;
        }
        let Some(ArrayComparison::Measured(found)) = &check.found else { return false };
        let floor: Option<NoiseFloor> = row.floor.or(row.accumulated_floor);
        match (floor, is_right(row)) {
            (Some(floor), true) => floor.explains(&found.errors),
            (Some(floor), false) => floor.is_near(&found.errors),
            (None, true) if check.explained.is_none() => {
                let before = row.judged().map_or(0.0, |found| found.errors.rel_l2);
                found.errors.rel_l2 <= NoiseFloor::FAR * before + f64::from(f32::EPSILON)
            }
            (None, _) => false,
        }
    }
}

/// Limits a change to some passes. A change from a position on keeps its position, which was read from the values.
fn limited(change: &OperationChange, passes: Option<PassRestriction>) -> OperationChange {
    match change.passes {
        Some(PassRestriction::From(_)) => change.clone(),
        _ => change.clone().limited_to(passes),
    }
}

fn is_right(row: &SiteResult) -> bool {
    matches!(row.verdict, Verdict::Pass | Verdict::Tie)
}
