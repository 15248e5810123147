//! The runs of a mode: from the token ids, restarted at every recorded value, or restarted at every layer.

use crate::tap::Tap;
use std::collections::HashMap;

use crate::check::choice_margins::{DraftToken, Preference};
use crate::check::continuation_values::ContinuationValues;
use crate::check::rules::Mode;
use crate::check::run_context::RunContext;
use crate::check::site_check::{SiteCheck, UnexplainedOperation};
use crate::check::starting_values::LayerInputs;
use crate::checkpoint::{Point, Site};
use crate::engine::{GreedyToken, Transcript};
use crate::error::Result;
use crate::plan::Unit;

/// A value for each of the two runs of a mode.
#[derive(Default)]
pub(crate) struct RunPair<T> {
    /// Value of the run from the token ids, without recorded inputs.
    pub(crate) accumulated: T,
    /// Value of the run in which each operation takes its inputs from the dump.
    pub(crate) local: T,
}

/// Preferences of our router for its choice of experts, by site.
pub(crate) type Preferences = RunPair<HashMap<Site, Preference>>;

/// Margins by which our engine prefers top tokens that the dump does not list to those that it lists, by
/// pass.
pub(crate) type RankMargins = RunPair<HashMap<usize, f64>>;

/// The results of a mode's runs by site, and the sites visited in data-flow order.
#[derive(Default)]
pub(crate) struct RunResults {
    pub(crate) visited: Vec<Site>,
    /// Records of the run that starts from the token ids.
    pub(crate) accumulated: HashMap<Site, SiteCheck>,
    /// Records of the run in which each operation starts from the dump's recorded values.
    pub(crate) local: HashMap<Site, SiteCheck>,
    /// Operations of the dump's engine that rounding does not explain, in data-flow order.
    pub(crate) unexplained: Vec<UnexplainedOperation>,
    /// Tokens that the run from the token ids chose, starting at the end of the prompt.
    pub(crate) choices: Vec<GreedyToken>,
    /// Margins by which our logits prefer our choice to the dump's, by pass.
    pub(crate) margins: HashMap<usize, f64>,
    /// Tokens read within one pass, e.g. draft tokens, at which our logits prefer another token.
    pub(crate) read_on: Vec<DraftToken>,
    /// Margins by which our logits prefer top tokens that the dump does not list, for both runs.
    pub(crate) rank_margins: RankMargins,
    /// The preference of our router for its choice of experts, by site.
    pub(crate) preferences: Preferences,
}

/// Returns the values with which the second run of a mode continues.
pub(crate) fn continues(mode: Mode) -> ContinuationValues {
    if mode == Mode::Layers { ContinuationValues::HeldBetweenLayers } else { ContinuationValues::Held }
}

impl RunResults {
    pub(crate) fn of(context: &RunContext, mode: Mode, onlooker: &mut dyn Tap) -> Result<Self> {
        let script = context.script();
        let mut runs = Self::default();
        if matches!(mode, Mode::Both | Mode::Accumulated) {
            let (checks, transcript) =
                context.run(context.numerics, &script, ContinuationValues::Own, &mut *onlooker)?;
            runs.begin(&checks, transcript);
            (runs.rank_margins.accumulated, runs.preferences.accumulated) =
                (rank_margins(&checks), preferences(&checks));
            runs.accumulated = by_site(checks);
        }
        // If the dump records no layer input, there is nothing to run.
        let starts = mode != Mode::Layers || any_layer_can_start(context);
        if mode != Mode::Accumulated && starts {
            // The passes after the dump's have no recorded values to evaluate.
            let (mut checks, transcript) = match context.unit {
                Unit::Continuation => {
                    context.run(context.numerics, &script, continues(mode), &mut *onlooker)?
                }
                _ => context.evaluate(&script, continues(mode), &mut *onlooker)?,
            };
            if runs.visited.is_empty() {
                runs.begin(&checks, transcript);
            }
            (runs.rank_margins.local, runs.preferences.local) = (rank_margins(&checks), preferences(&checks));
            runs.unexplained = checks.iter_mut().filter_map(|check| check.unexplained.take()).collect();
            runs.local = by_site(checks);
        }
        Ok(runs)
    }

    /// Stores the visited sites and the choices of the first run.
    fn begin(&mut self, checks: &[SiteCheck], transcript: Transcript) {
        self.visited = checks.iter().map(|check| check.site).collect();
        self.margins = margins(checks, Point::Argmax);
        self.read_on = checks.iter().filter_map(|check| check.draft).collect();
        self.choices = transcript.choices;
    }
}

/// Returns the margins of a run's choices at a tap, by pass.
fn margins(checks: &[SiteCheck], point: Point) -> HashMap<usize, f64> {
    let of_tap = checks.iter().filter(|check| check.site.point == point);
    of_tap.filter_map(|check| Some((check.site.pass?, check.margin?))).collect()
}

/// Returns the margins by which unlisted top tokens exceed listed ones, by pass.
pub(crate) fn rank_margins(checks: &[SiteCheck]) -> HashMap<usize, f64> {
    margins(checks, Point::TopIds)
}

/// Returns the preference of the router for its choice of experts, by site.
pub(crate) fn preferences(checks: &[SiteCheck]) -> HashMap<Site, Preference> {
    checks.iter().filter_map(|check| Some((check.site, check.preference?))).collect()
}

/// Returns the records by site. A site that is visited again keeps its comparison.
fn by_site(checks: Vec<SiteCheck>) -> HashMap<Site, SiteCheck> {
    let mut found: HashMap<Site, SiteCheck> = HashMap::new();
    for check in checks {
        if check.found.is_some() || !found.contains_key(&check.site) {
            found.insert(check.site, check);
        }
    }
    found
}

fn any_layer_can_start(context: &RunContext) -> bool {
    let inputs = LayerInputs::new(context.held.dump, context.model.dimensions().n_layers);
    let is_selected = |site: &Site| context.selection.takes(*site, &context.held.positions(*site));
    let mut selected = context.held.sites().filter(is_selected);
    selected.any(|site| site.point != Point::Embed && inputs.missing(site).is_none())
}
