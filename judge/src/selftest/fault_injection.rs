//! Injected faults, and how the judge found them.

use crate::catalogue::{OperationChange, Supposition};
use crate::change::{CauseKind, ChangeValue, ModelOperations, SiteContext};
use crate::checkpoint::{Point, Site};
use crate::engine::{self, RunInput};
use crate::error::Result;
use crate::exact::Profile;
use crate::selftest::test_model::TestModel;
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;
use crate::verdict::{Finding, Outcome, Verdict};

/// A change of an operation that is injected into a run.
#[derive(Clone, Debug)]
pub struct InjectedFault {
    /// The changed operation.
    pub change: OperationChange,
    /// The change and the site where it is injected.
    pub supposed: Supposition,
}

/// Returns every change that applies to a model, with all values worth testing.
///
/// # Errors
/// If the model cannot be run.
pub fn plants_of(bed: &TestModel) -> Result<Vec<InjectedFault>> {
    let traced = TracedNumerics::new(&*bed.numerics, Profile::of(&*bed.numerics));
    let operations = ModelOperations::of(&*bed.model, &*bed.numerics)?;
    let read = bed.prompt_tokens();
    let mut plants = FaultSearch {
        traced: &traced,
        operations: &operations,
        found: Vec::new(),
        read,
        position: 0,
        tokens: 0,
    };
    let first: Vec<u32> = read.iter().copied().take(5).collect();
    engine::run(&*bed.model, &traced, &RunInput::greedy(&first, 1), &mut plants)?;
    Ok(plants.found)
}

/// A tap that collects the changes that apply to a model.
struct FaultSearch<'p> {
    traced: &'p TracedNumerics<'p>,
    operations: &'p ModelOperations,
    found: Vec<InjectedFault>,
    /// Tokens of the text: the prompt, and any token after it.
    read: &'p [u32],
    position: usize,
    tokens: usize,
}

impl Tap for FaultSearch<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point == Point::Embed {
            (self.position, self.tokens) = (self.position + self.tokens, value.rows());
        }
        let positions = self.position..self.position + self.tokens;
        let at = SiteContext::new(site, positions, &value, self.traced, self.operations).reading(self.read);
        for change in OperationChange::applicable(&at) {
            let is_known = self.found.iter().any(|known| known.change == change);
            let entry = change.entry;
            let is_of_one_place = entry.is_local || entry.kind == CauseKind::LayerOrder;
            // Changes of a single layer are not injected in the first layer, so that the judge must find the
            // layer.
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

/// Result of judging a dump with an injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultDetection {
    /// Only the injected kind and value is named.
    Right,
    /// The injected kind and value is one of several named causes.
    Among,
    /// The injected kind is named, with a wrong value.
    OtherValue,
    /// Only other kinds are named.
    Wrong,
    /// The dump fails, and no cause is named.
    Unnamed,
    /// The dump passes, since rounding hides the fault.
    Hidden,
    /// The verdict is inconclusive.
    Open,
    /// The change altered no operation in this run.
    NotMade,
}

/// Classifies the outcome for a fault that altered `made` operations.
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
    if change.passes.is_some() || change.heads.is_some() {
        return of_a_part(first, change);
    }
    match first.kind == change.entry.kind {
        true if first.candidate == value && first.remaining.is_empty() => FaultDetection::Right,
        true if first.candidate == value || is_among => FaultDetection::Among,
        true => FaultDetection::OtherValue,
        false if is_among => FaultDetection::Among,
        false => FaultDetection::Wrong,
    }
}

/// Classifies the first finding for a fault of some passes or heads: its restriction must be named, too.
fn of_a_part(first: &Finding, change: &OperationChange) -> FaultDetection {
    let is_it = |typed: &String| without_place(typed) == without_place(&change.to_string());
    match (first.supposed.as_ref().is_some_and(is_it), first.remaining.iter().any(is_it)) {
        (true, _) if first.remaining.is_empty() => FaultDetection::Right,
        (true, _) | (_, true) => FaultDetection::Among,
        _ if first.kind == change.entry.kind => FaultDetection::OtherValue,
        _ => FaultDetection::Wrong,
    }
}

/// Returns "kind=value" of a cause without its tap.
fn without_place(typed: &str) -> String {
    let (name, value) = typed.split_once('=').map_or((typed, None), |(name, value)| (name, Some(value)));
    let kind = name.split('@').next().unwrap_or(name);
    value.map_or(kind.to_owned(), |value| format!("{kind}={value}"))
}
