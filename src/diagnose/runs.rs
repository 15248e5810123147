//! The runs that a mode asks for: ordinary, teacher-forced at every stage, or started anew at every layer.

use std::collections::HashMap;

use crate::checkpoint::{Point, Site};
use crate::compare::{Continue, LiveComparison, Measurement};
use crate::diagnose::check::Rules;
use crate::diagnose::layers::LayerInputs;
use crate::diagnose::outcome::Mode;
use crate::dump::{Dump, Manifest};
use crate::engine::{self, Choice, Script, Step};
use crate::error::Result;
use crate::model::Model;
use crate::numerics::Numerics;
use crate::tap::Tap;

/// Measurements of one run, in the order of the run.
type Found = Vec<(Site, Option<Measurement>)>;

/// What the runs that a mode asks for came by, in data-flow order, and what was measured there.
pub(super) struct Runs {
    pub(super) visited: Vec<Site>,
    pub(super) ordinary: HashMap<Site, Measurement>,
    pub(super) isolated: HashMap<Site, Measurement>,
    /// What the ordinary run chose from the end of the prompt on.
    pub(super) choices: Vec<Choice>,
}

impl Runs {
    pub(super) fn of(
        model: &dyn Model,
        numerics: &dyn Numerics,
        reference: &Dump,
        rules: Rules,
        onlooker: &mut dyn Tap,
    ) -> Result<Self> {
        let script = script_of(&reference.manifest);
        let dimensions = model.dimensions();
        let mut choices = Vec::new();
        let mut run = |go_on| -> Result<Found> {
            let mut comparison =
                LiveComparison::new(reference, rules.selection, dimensions.rope_pairing, go_on);
            let transcript = engine::run(model, numerics, &script, &mut (&mut *onlooker, &mut comparison))?;
            if go_on == Continue::Ours {
                choices = transcript.choices;
            }
            comparison.finish()
        };
        let travelling = match rules.mode {
            Mode::Both | Mode::Propagated => Some(Continue::Ours),
            // Where no layer can start from the reference, there is nothing to run for.
            Mode::Layerwise => any_layer_can_start(reference, dimensions.n_layers, rules)
                .then_some(Continue::TheirsBetweenLayers),
            Mode::Isolated => None,
        };
        let ordinary = travelling.map(&mut run).transpose()?;
        let teacher_forced = matches!(rules.mode, Mode::Both | Mode::Isolated);
        let isolated = teacher_forced.then(|| run(Continue::Theirs)).transpose()?;
        let visited = ordinary.iter().chain(&isolated).next().map_or(Vec::new(), sites);
        Ok(Self { visited, ordinary: by_site(ordinary), isolated: by_site(isolated), choices })
    }
}

fn any_layer_can_start(reference: &Dump, n_layers: usize, rules: Rules) -> bool {
    let inputs = LayerInputs::new(reference, n_layers);
    let mut selected = reference.sites().filter(|&site| rules.selection.includes(site));
    selected.any(|site| site.point != Point::Embed && inputs.missing(site).is_none())
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
