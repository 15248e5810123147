//! The faults that a self-test injects: all, or a sample.

use std::collections::BTreeSet;

use crate::catalogue::{HeadRestriction, OperationChange, PassRestriction, Supposition, catalogue};
use crate::change::CauseKind;
use crate::error::Result;
use crate::selftest::fault_injection::{InjectedFault, plants_of};
use crate::selftest::test_model::{ARITHMETICS, TestModel};

/// Kinds that are also injected into only some passes. Rounding hides their effect in no pass.
const IN_SOME_PASSES: [CauseKind; 4] =
    [CauseKind::NormKind, CauseKind::RopeTheta, CauseKind::AttnScale, CauseKind::Activation];

/// Passes into which faults are injected: the first, the later ones, and the last one.
const PASSES: [PassRestriction; 3] =
    [PassRestriction::Prompt, PassRestriction::Decode, PassRestriction::From(12)];

/// Kinds that are also injected into one head.
const IN_ONE_HEAD: [CauseKind; 3] = [CauseKind::RopeTheta, CauseKind::AttnScale, CauseKind::MaskWindow];

/// Returns all kinds of changes in the catalogue.
pub fn kinds() -> BTreeSet<CauseKind> {
    catalogue().map(|entry| entry.kind).collect()
}

/// Returns every fault of these models.
///
/// # Errors
/// If a model cannot be run.
pub fn every_fault<'b>(
    models: impl Iterator<Item = &'b TestModel>,
) -> Result<Vec<(&'b TestModel, InjectedFault)>> {
    let mut faults = Vec::new();
    for model in models {
        faults.extend(plants_of(model)?.into_iter().map(|fault| (model, fault)));
    }
    Ok(faults)
}

/// Returns one fault of each kind in each arithmetic, and some faults of some passes or of one head. Each arithmetic uses another model
/// and another value.
///
/// # Errors
/// If a model cannot be run.
pub fn sampled_faults(models: &[TestModel]) -> Result<Vec<(&TestModel, InjectedFault)>> {
    let kinds = kinds();
    let mut sample = Vec::new();
    for (turn, arithmetic) in ARITHMETICS.into_iter().enumerate() {
        let faults = every_fault(models.iter().filter(|model| model.arithmetic == arithmetic))?;
        let of = |kind: CauseKind| {
            let of_kind: Vec<_> = faults.iter().filter(|(_, one)| one.change.entry.kind == kind).collect();
            of_kind.get(turn * of_kind.len() / ARITHMETICS.len()).copied()
        };
        sample
            .extend(kinds.iter().filter_map(|kind| of(*kind)).map(|(model, fault)| (*model, fault.clone())));
        for (index, kind) in IN_SOME_PASSES.into_iter().enumerate() {
            let passes = PASSES[(turn + index) % PASSES.len()];
            let limited = |change: &OperationChange| change.clone().limited_to(Some(passes));
            sample.extend(of(kind).map(|(model, fault)| (*model, restricted(fault, limited))));
        }
        for kind in IN_ONE_HEAD {
            let limited = |change: &OperationChange| {
                change.clone().in_heads(Some(HeadRestriction::new([turn % 2].into())))
            };
            sample.extend(of(kind).map(|(model, fault)| (*model, restricted(fault, limited))));
        }
    }
    Ok(sample)
}

/// Returns the fault with a restricted change.
fn restricted(fault: &InjectedFault, limited: impl Fn(&OperationChange) -> OperationChange) -> InjectedFault {
    let Supposition { change, layers } = &fault.supposed;
    let supposed = Supposition { change: change.iter().map(&limited).collect(), layers: layers.clone() };
    InjectedFault { change: limited(&fault.change), supposed }
}
