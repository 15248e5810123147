//! Running a model against a reference: what was measured, judged into one verdict.

use std::collections::BTreeSet;

use crate::checkpoint::{Point, Site};
use crate::compare::{Pairing, Selection, Tolerances, compare_dumps};
use crate::diagnose::hypotheses::Ours;
use crate::diagnose::inputs::InputsHeld;
use crate::diagnose::judge::Judge;
use crate::diagnose::layers::LayerInputs;
use crate::diagnose::outcome::{Mode, Outcome};
use crate::diagnose::runs::Runs;
use crate::dump::Dump;
use crate::engine;
use crate::error::Result;
use crate::model::Model;
use crate::numerics::{self, Numerics};
use crate::tap::Tap;

/// How to judge, whatever is compared.
#[derive(Clone, Copy)]
pub struct Rules<'r> {
    /// What to look at.
    pub selection: &'r Selection,
    /// How much error is allowed.
    pub tolerances: &'r Tolerances,
    /// The precision under which tolerances are looked up: the weights' type, or the torch dtype of everything.
    pub precision: &'r str,
    /// Which errors to measure.
    pub mode: Mode,
}

/// Runs `model` on the reference's own input and compares every selected value.
///
/// `onlooker` sees each value before it is compared, and may change it: `&mut ()` for nobody, else a display of
/// progress or a planted fault.
///
/// # Errors
/// If the model cannot read the reference's tokens, or the reference is damaged or of another model.
pub fn cross_check(
    name: &str,
    model: &dyn Model,
    numerics: &dyn Numerics,
    reference: &Dump,
    rules: Rules,
    onlooker: &mut dyn Tap,
) -> Result<Outcome> {
    let mut judge = Judge::new(reference, rules, model.architecture());
    let Ran { expected, points } = run_and_judge(&mut judge, model, numerics, reference, rules, onlooker)?;
    if !points.is_empty() {
        judge.note_points_of_one_side("our engine", &points, "the reference", &reference.points());
    }
    judge.finish(name, Ours::Model(model, numerics), &expected)
}

/// What a run leaves beside its measurements.
pub(super) struct Ran {
    /// What should have been measured.
    pub(super) expected: Vec<Site>,
    /// The tap points it came by; none where there was nothing to run for.
    points: BTreeSet<Point>,
}

/// Runs the model and hands what was measured to the judge.
pub(super) fn run_and_judge(
    judge: &mut Judge,
    model: &dyn Model,
    numerics: &dyn Numerics,
    reference: &Dump,
    rules: Rules,
    onlooker: &mut dyn Tap,
) -> Result<Ran> {
    if let Some(what) = decoded(model, numerics) {
        judge.note(what);
    }
    let runs = Runs::of(model, numerics, reference, rules, onlooker)?;
    let expected = expected_sites(&runs.visited, reference, rules.selection);
    let lacking = Lacking {
        mode: rules.mode,
        stage_inputs: InputsHeld::new(&runs.visited, reference),
        layer_inputs: LayerInputs::new(reference, model.dimensions().n_layers),
    };
    judge.set_choices(runs.choices);
    let (mut ordinary, mut isolated) = (runs.ordinary, runs.isolated);
    for &site in &expected {
        let (ordinary, introduced) = (ordinary.remove(&site), isolated.remove(&site));
        match lacking.at(site) {
            Some(what) => judge.skip(site, format!("{site}: {what}")),
            None => judge.add(site, ordinary, introduced.filter(|_| lacking.stage_inputs.at(site))),
        }
    }
    Ok(Ran { expected, points: runs.visited.iter().map(|site| site.point).collect() })
}

/// What to say of weights that are not computed with as they are stored.
fn decoded(model: &dyn Model, numerics: &dyn Numerics) -> Option<String> {
    let types: BTreeSet<_> = engine::decoded(model, numerics).into_iter().map(|(_, dtype)| dtype).collect();
    let first = *types.first()?;
    let native = numerics::ALL.iter().find(|numerics| numerics.native_types().contains(&first))?;
    let names: Vec<_> = types.into_iter().map(|dtype| dtype.name()).collect();
    Some(format!("weights of type {} were decoded: not what {} computes", names.join(", "), native.name()))
}

/// Why the error that a mode asks for cannot be measured at a place.
struct Lacking<'d> {
    mode: Mode,
    stage_inputs: InputsHeld<'d>,
    layer_inputs: LayerInputs,
}

impl Lacking<'_> {
    fn at(&self, site: Site) -> Option<String> {
        match self.mode {
            Mode::Isolated if !self.stage_inputs.at(site) => {
                Some("its inputs are not in the reference".to_owned())
            }
            Mode::Layerwise => self
                .layer_inputs
                .missing(site)
                .map(|input| format!("would start from {input}, which is not in the reference")),
            _ => None,
        }
    }
}

/// Compares two dumps; `ours` is judged against `theirs`.
///
/// # Errors
/// If they did not read the same tokens, or one is damaged or of another model.
pub fn cross_check_dumps(name: &str, ours: &Dump, theirs: &Dump, rules: Rules) -> Result<Outcome> {
    let mut judge = Judge::new(theirs, rules, theirs.manifest.architecture());
    let mut expected: Vec<Site> = Vec::new();
    for (site, pairing) in compare_dumps(ours, theirs, rules.selection)? {
        expected.push(site);
        match pairing {
            Pairing::Measured(found) => judge.add(site, Some(found), None),
            Pairing::Lacking(what) => judge.skip(site, what),
        }
    }
    judge.note_points_of_one_side("the first dump", &ours.points(), "the second", &theirs.points());
    judge.finish(name, Ours::Dump(ours), &expected)
}

/// What should have been compared: every selected value the run came by whose tap point the reference has at
/// all, and every selected value of the reference.
fn expected_sites(visited: &[Site], reference: &Dump, selection: &Selection) -> Vec<Site> {
    let points = reference.points();
    let ours = visited.iter().copied().filter(|site| points.contains(&site.point));
    let mut all: Vec<Site> = ours.chain(reference.sites()).filter(|&site| selection.includes(site)).collect();
    all.sort_by_key(|site| site.flow_order());
    all.dedup();
    all
}
