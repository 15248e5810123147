//! Starting values of an operation: the nearest recorded values before it. With fewer taps in a dump,
//! judgements become coarser.

use crate::dump::Dump;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use crate::align::AlignedDump;
use crate::check::continuation_values::ContinuationValues;
use crate::checkpoint::{Point, Site};
use crate::model::Model;
use crate::plan::{Crossing, input_of};

/// The distance between an operation's inputs and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SegmentSpan {
    /// One operation, apart from exact ones: an addition, a conversion to the cache's type, a picked row.
    Stage,
    /// Several operations of one layer.
    Layer,
    /// Operations of more than one layer, up to the whole run.
    Run,
}

/// The part of the run between a site and its starting values.
#[derive(Clone, Debug)]
pub(crate) struct StartingValues {
    /// The nearest recorded values, without their passes, in data-flow order. Empty if the part starts at the
    /// tokens.
    pub(crate) since: Vec<Site>,
    pub(crate) span: SegmentSpan,
    /// True if a path to the site starts at the tokens instead of a recorded value.
    pub(crate) from_tokens: bool,
    /// Expert choices that our run made within this part.
    pub(crate) choices: Vec<Site>,
}

/// The path back from a site to recorded values.
#[derive(Clone, Debug, Default)]
struct InputPath {
    held: BTreeSet<(Option<usize>, Point)>,
    /// True if the path contains more than one operation.
    passes_over: bool,
    from_tokens: bool,
    /// Layers and passes of expert choices that the run made itself.
    chosen: BTreeSet<(Option<usize>, Option<usize>)>,
}

/// Finds the starting values of each site of a run.
pub(crate) struct StartingValueFinder<'d> {
    held: &'d AlignedDump<'d>,
    go_on: ContinuationValues,
    visited: HashSet<Site>,
    last_layer: Option<usize>,
    /// Number of earlier inputs that each layer's short convolution reads.
    kept_inputs: Vec<usize>,
    /// The pass in which the run reads all earlier tokens again (LongRoPE).
    anew: Option<usize>,
    known: RefCell<HashMap<Site, Rc<InputPath>>>,
}

impl<'d> StartingValueFinder<'d> {
    /// Makes a finder for a run of `model` that visited `visited`. `go_on` selects the recorded values with
    /// which the run continued.
    pub(crate) fn new(
        model: &dyn Model,
        visited: &[Site],
        held: &'d AlignedDump<'d>,
        go_on: ContinuationValues,
    ) -> Self {
        let layers = 0..model.dimensions().n_layers;
        let kept_inputs = layers.map(|layer| model.layer_state(layer).kept_inputs()).collect();
        let last_layer = visited.iter().filter_map(|site| site.layer).max();
        let visited = visited.iter().copied().collect();
        Self { held, go_on, visited, last_layer, kept_inputs, anew: None, known: RefCell::default() }
    }

    /// Sets the pass in which the run reads all earlier tokens again.
    pub(crate) fn anew_at(self, crossing: Option<Crossing>) -> Self {
        Self { anew: crossing.map(|crossing| crossing.pass), ..self }
    }

    pub(crate) fn of(&self, site: Site) -> StartingValues {
        let way = self.way(site);
        let since: Vec<Site> =
            way.held.iter().map(|&(layer, point)| Site { point, layer, pass: None }).collect();
        // The final norm may start before the last layer: transformers returns no other value between them.
        let layer = if site.point == Point::FinalNorm { self.last_layer } else { site.layer };
        let is_inside = |start: &Site| match (layer, start.layer) {
            (None, Some(_)) => start.point == Point::BlockOut && start.layer == self.last_layer,
            (layer, None) => layer.is_none_or(|layer| layer == 0),
            (Some(layer), Some(other)) => {
                other == layer || (start.point == Point::BlockOut && other + 1 == layer)
            }
        };
        let span = match way.passes_over {
            false => SegmentSpan::Stage,
            true if since.iter().all(is_inside) && !(way.from_tokens && site.layer != Some(0)) => {
                SegmentSpan::Layer
            }
            true => SegmentSpan::Run,
        };
        let choice = |&(layer, pass): &(_, _)| Site { point: Point::Experts, layer, pass };
        let choices = way.chosen.iter().map(choice).collect();
        StartingValues { since, span, from_tokens: way.from_tokens, choices }
    }

    /// Finds sites of `expected` that can be left out, each with the taps that judge it instead. The dump
    /// records the site's tap and layer in no pass, and every value computed from it is judged within a
    /// layer.
    ///
    /// A site is not left out if some pass has a value, or if no recorded value follows.
    pub(crate) fn covered(
        &self,
        expected: &[Site],
        is_judged: impl Fn(Site) -> bool,
    ) -> HashMap<Site, BTreeSet<Point>> {
        let is_anywhere = |site: Site| {
            let mut passes = 0..self.held.passes().len();
            site.pass.is_none() || passes.any(|pass| self.held.holds(Site { pass: Some(pass), ..site }))
        };
        let lacking: Vec<Site> = expected.iter().copied().filter(|&site| !is_anywhere(site)).collect();
        if lacking.is_empty() {
            return HashMap::new();
        }
        let mut followers: HashMap<Site, Vec<Site>> = HashMap::new();
        for &site in &self.visited {
            self.inputs(site).into_iter().for_each(|input| followers.entry(input).or_default().push(site));
        }
        let covered = |site: Site| Some((site, self.judges(site, &followers, &is_judged)?));
        lacking.into_iter().filter_map(covered).collect()
    }

    /// Returns the recorded taps that are computed from a site without a value, and so judge it. `None` if one of them
    /// is not judged, or starts more than a layer earlier.
    fn judges(
        &self,
        site: Site,
        followers: &HashMap<Site, Vec<Site>>,
        is_judged: impl Fn(Site) -> bool,
    ) -> Option<BTreeSet<Point>> {
        let (mut ahead, mut seen, mut judges) = (vec![site], HashSet::from([site]), BTreeSet::new());
        while let Some(site) = ahead.pop() {
            for &follower in followers.get(&site)? {
                if !self.starts_at(follower) {
                    ahead.extend(seen.insert(follower).then_some(follower));
                } else if is_judged(follower) && self.of(follower).span != SegmentSpan::Run {
                    judges.insert(follower.point);
                } else {
                    return None;
                }
            }
        }
        Some(judges)
    }

    /// Returns true if the run continued with the dump's value at a site.
    fn starts_at(&self, site: Site) -> bool {
        self.go_on.replaces(site.point) && self.held.dump.starts_at(site)
    }

    fn way(&self, site: Site) -> Rc<InputPath> {
        if let Some(known) = self.known.borrow().get(&site) {
            return known.clone();
        }
        let is_cache = matches!(site.point, Point::KCache | Point::VCache);
        // A cache that was read again does not start from recorded values.
        let is_anew = is_cache && site.pass.is_some() && site.pass == self.anew;
        let from_tokens = is_anew || site.point == Point::Embed;
        let mut way = InputPath { from_tokens, passes_over: is_anew, ..InputPath::default() };
        for input in self.inputs(site) {
            if self.starts_at(input) {
                way.held.insert((input.layer, input.point));
                continue;
            }
            if input.point == Point::Experts {
                way.chosen.insert((input.layer, input.pass));
            }
            let before = self.way(input);
            way.chosen.extend(&before.chosen);
            way.held.extend(&before.held);
            way.passes_over |= before.passes_over || !input.point.is_derived();
            way.from_tokens |= before.from_tokens;
        }
        let way = Rc::new(way);
        self.known.borrow_mut().insert(site, way.clone());
        way
    }

    /// Returns the sites from which `site` is computed.
    fn inputs(&self, site: Site) -> Vec<Site> {
        let groups = site.point.inputs().iter();
        let mut inputs: Vec<Site> =
            groups.filter_map(|points| points.iter().find_map(|&point| self.nearest(point, site))).collect();
        match (site.point, site.pass) {
            // The continuation reads every pass's choice.
            (Point::Generated, _) => {
                inputs = self.visited.iter().copied().filter(|input| input.point == Point::Argmax).collect();
            }
            // A cache contains its values of the previous pass.
            (Point::KCache | Point::VCache, Some(pass @ 1..)) if self.anew != Some(pass) => {
                inputs.push(Site { pass: Some(pass - 1), ..site });
            }
            // So does the state of a recurrent layer.
            (Point::RecurrentState | Point::RecurrentOut, Some(pass @ 1..)) => {
                inputs.push(Site { point: Point::RecurrentState, pass: Some(pass - 1), ..site });
            }
            (Point::ConvOut, Some(pass)) => inputs.extend(self.earlier_inputs(site, pass)),
            _ => {}
        }
        inputs
    }

    /// Returns the inputs of a short convolution in earlier passes that may reach into a pass.
    fn earlier_inputs(&self, site: Site, pass: usize) -> Vec<Site> {
        let kept = site.layer.and_then(|layer| self.kept_inputs.get(layer)).copied().unwrap_or(0);
        let (passes, mut tokens) = (self.held.passes(), 0);
        let may_reach = |earlier: &usize| {
            let is_near = tokens < kept;
            tokens += passes.get(*earlier).map_or(0, |pass| pass.tokens.len());
            is_near
        };
        let earlier = (0..pass).rev().take_while(may_reach);
        earlier.map(|earlier| Site { point: Point::ConvIn, pass: Some(earlier), ..site }).collect()
    }

    /// Returns the site from which `site` reads `point`, if the run visited it.
    fn nearest(&self, point: Point, site: Site) -> Option<Site> {
        let layer = match (site.layer, point) {
            (_, point) if point.is_before_layers() => None,
            // A layer's input is the previous layer's output.
            (Some(layer), Point::BlockOut) => Some(layer.checked_sub(1)?),
            (None, Point::BlockOut) => self.last_layer,
            (layer, _) => layer,
        };
        let input = Site { point, layer, pass: site.pass };
        self.visited.contains(&input).then_some(input)
    }
}

/// The first missing input of each layer, and of the operations after the last layer.
pub(crate) struct LayerInputs {
    lacking: Vec<Option<Site>>,
}

impl LayerInputs {
    pub(crate) fn new(reference: &Dump, n_layers: usize) -> Self {
        let passes = reference.manifest.passes.len();
        let first_lacking = |layer: usize| {
            let mut inputs = (0..passes).map(|pass| input_of(layer, pass));
            inputs.find(|&input| !reference.starts_at(input))
        };
        Self { lacking: (0..=n_layers).map(first_lacking).collect() }
    }

    /// Returns the missing input because of which `site` cannot be computed from the reference. The input may
    /// belong to an earlier pass, which fills the layer's cache.
    pub(crate) fn missing(&self, site: Site) -> Option<Site> {
        let after_the_last = self.lacking.len() - 1;
        let layer = match (site.layer, site.point) {
            (None, point) if point.is_before_layers() => return None,
            (layer, _) => layer.unwrap_or(after_the_last),
        };
        let input = self.lacking.get(layer).copied().flatten()?;
        (site.pass.is_none() || input.pass <= site.pass).then_some(input)
    }
}
