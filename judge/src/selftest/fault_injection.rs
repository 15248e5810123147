//! Injected faults, and their detection.

use std::collections::BTreeSet;

use crate::change::{
    CatalogueEntry, CauseKind, ChangeValue, ModelOperations, OperationChange, SiteContext, Supposition,
    catalogue,
};
use crate::checkpoint::{Point, Site};
use crate::compare::Verdict;
use crate::diagnose::Outcome;
use crate::engine::{self, RunInput};
use crate::error::Result;
use crate::exact::{Profile, TracedNumerics};
use crate::selftest::test_model::TestModel;
use crate::tap::Tap;
use crate::tensor::Tensor;

/// A change with its site.
#[derive(Clone, Debug)]
pub struct InjectedFault {
    /// The change.
    pub change: OperationChange,
    /// The change with its site.
    pub supposed: Supposition,
}

/// Every change that a model can have, with every value worth planting.
///
/// # Errors
/// If the model cannot be run.
pub fn plants_of(bed: &TestModel) -> Result<Vec<InjectedFault>> {
    let traced = TracedNumerics::new(&*bed.numerics, Profile::of(&*bed.numerics));
    let book = ModelOperations::of(&*bed.model, &*bed.numerics)?;
    let mut plants = FaultSearch { traced: &traced, book: &book, found: Vec::new(), position: 0, tokens: 0 };
    let first: Vec<u32> = bed.prompt_tokens().iter().copied().take(5).collect();
    engine::run(&*bed.model, &traced, &RunInput::greedy(&first, 1), &mut plants)?;
    Ok(plants.found)
}

/// A search for the changes that apply to a model.
struct FaultSearch<'p> {
    traced: &'p TracedNumerics<'p>,
    book: &'p ModelOperations,
    found: Vec<InjectedFault>,
    position: usize,
    tokens: usize,
}

impl Tap for FaultSearch<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point == Point::Embed {
            (self.position, self.tokens) = (self.position + self.tokens, value.rows());
        }
        let positions = self.position..self.position + self.tokens;
        let at = SiteContext::new(site, positions, &value, self.traced, self.book);
        for change in at.changes() {
            let is_known = self.found.iter().any(|known| known.change == change);
            let entry = change.entry;
            let is_of_one_place = entry.is_local || entry.kind == CauseKind::LayerOrder;
            // Not in the first layer: a mistake of one layer is to be found in it.
            if is_known || (is_of_one_place && site.layer == Some(0)) {
                continue;
            }
            let everywhere = Supposition::everywhere(change.clone());
            let supposed = match (is_of_one_place, site.layer) {
                (true, Some(layer)) => everywhere.at(site.point).in_layers([layer]),
                (true, None) => everywhere.at(site.point),
                _ => everywhere,
            };
            self.found.push(InjectedFault { change, supposed });
        }
        value.with_origins(Vec::new())
    }
}

/// The detection of an injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultDetection {
    /// Its kind and its value.
    Right,
    /// Its kind first, and others that explain the same.
    Among,
    /// Its kind, with another value.
    OtherValue,
    /// Another kind alone.
    Wrong,
    /// Failure without a cause.
    Unnamed,
    /// Pass: rounding hides the fault.
    Hidden,
    /// Could not be judged.
    Open,
    /// The run never comes by it.
    NotMade,
}

/// Returns the detection of a fault that changed `made` operations.
pub fn told(outcome: &Outcome, change: &OperationChange, made: usize) -> FaultDetection {
    match outcome.verdict {
        _ if made == 0 => return FaultDetection::NotMade,
        Verdict::Pass | Verdict::Tie | Verdict::Known => return FaultDetection::Hidden,
        Verdict::Inconclusive => return FaultDetection::Open,
        Verdict::Fail => {}
    }
    let Some(first) = outcome.findings.first() else { return FaultDetection::Unnamed };
    if !first.kind.is_cause() {
        return FaultDetection::Unnamed;
    }
    let value = if change.value == ChangeValue::Nothing { None } else { Some(change.value.to_string()) };
    let is_among =
        first.remaining.iter().any(|other| without_place(other) == without_place(&change.to_string()));
    match first.kind == change.entry.kind {
        true if first.candidate == value && first.remaining.is_empty() => FaultDetection::Right,
        true if first.candidate == value || is_among => FaultDetection::Among,
        true => FaultDetection::OtherValue,
        false if is_among => FaultDetection::Among,
        false => FaultDetection::Wrong,
    }
}

/// "kind=value", without the tap point that it may be of.
fn without_place(typed: &str) -> String {
    let (name, value) = typed.split_once('=').map_or((typed, None), |(name, value)| (name, Some(value)));
    let kind = name.split('@').next().unwrap_or(name);
    value.map_or(kind.to_owned(), |value| format!("{kind}={value}"))
}

/// Kinds, one entry each.
pub fn kinds() -> BTreeSet<CauseKind> {
    catalogue().map(|entry: &CatalogueEntry| entry.kind).collect()
}
