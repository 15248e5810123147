//! Running a model against a reference: the ordinary run, the teacher-forced run, and one verdict.

use std::collections::HashMap;

use crate::checkpoint::Site;
use crate::compare::{Continue, LiveComparison, Measurement, Pairing, Selection, Tolerances, compare_dumps};
use crate::diagnose::inputs::InputsHeld;
use crate::diagnose::judge::Judge;
use crate::diagnose::outcome::{Mode, Outcome};
use crate::dump::{Dump, Manifest};
use crate::engine::{self, Script, Step};
use crate::error::Result;
use crate::model::Model;
use crate::numerics::Numerics;
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

/// Measurements of one run, in the order of the run.
type Found = Vec<(Site, Option<Measurement>)>;

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
    let script = script_of(&reference.manifest);
    let pairing = model.dimensions().rope_pairing;
    let mut run = |go_on| -> Result<Found> {
        let mut comparison = LiveComparison::new(reference, rules.selection, pairing, go_on);
        engine::run(model, numerics, &script, &mut (&mut *onlooker, &mut comparison))?;
        comparison.finish()
    };
    let ordinary = (rules.mode != Mode::Isolated).then(|| run(Continue::Ours)).transpose()?;
    let isolated = (rules.mode != Mode::Propagated).then(|| run(Continue::Theirs)).transpose()?;

    let visited: Vec<Site> = ordinary.iter().chain(&isolated).next().map_or(Vec::new(), sites);
    let inputs_held = InputsHeld::new(&visited, reference);
    let mut ordinary = by_site(ordinary);
    let mut isolated = by_site(isolated);
    let mut judge = Judge::new(reference, rules, model.architecture());
    for &site in &visited {
        let (ordinary, isolated) = (ordinary.remove(&site), isolated.remove(&site));
        match isolated.filter(|_| inputs_held.at(site)) {
            None if rules.mode == Mode::Isolated => {
                judge.skip(site, format!("{site}: its inputs are not in the reference"))
            }
            introduced => judge.add(site, ordinary, introduced),
        }
    }
    let expected = expected_sites(&visited, reference, rules.selection);
    let ours = visited.iter().map(|site| site.point).collect();
    judge.note_points_of_one_side("our engine", &ours, "the reference", &reference.points());
    judge.finish(name, numerics.name(), &expected)
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
    let producer = &ours.manifest.producer;
    judge.finish(name, &format!("{} {}", producer.name, producer.version), &expected)
}

/// The reference's own passes, and further ones, not looked at, where it generated more than it dumped.
fn script_of(manifest: &Manifest) -> Script {
    let step = |tokens: &[u32], temperature: Option<f32>, tapped| Step {
        tokens: Some(tokens.to_vec()),
        temperature: temperature.unwrap_or(1.0),
        tapped,
    };
    let mut passes: Vec<Step> =
        manifest.passes.iter().map(|p| step(&p.tokens, p.temperature, true)).collect();
    let prompt_len = manifest.input.tokens.len();
    let read = manifest.passes.last().map_or(0, |pass| pass.end());
    if let (Some(generated), Some(chosen)) = (&manifest.generated, read.checked_sub(prompt_len)) {
        let unread = generated.iter().take(generated.len().saturating_sub(1)).skip(chosen);
        passes.extend(unread.map(|&id| step(&[id], None, false)));
    }
    Script { passes, prompt_len }
}

fn sites(found: &Found) -> Vec<Site> {
    found.iter().map(|(site, _)| *site).collect()
}

fn by_site(found: Option<Found>) -> HashMap<Site, Measurement> {
    found.into_iter().flatten().filter_map(|(site, found)| Some((site, found?))).collect()
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
