//! Units: segments of the model between recorded values that can be judged independently.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::align::{Ranges, Selection};
use crate::checkpoint::{Checkpoint, Point, Site, TapScope};
use crate::dump::{Dump, Manifest};
use crate::engine::ModelSegment;
use crate::measure::coarser;
use crate::model::Model;
use crate::plan::Crossing;
use crate::weight::DType;

/// A unit of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// The whole model, with accumulated errors of a run from the token ids.
    #[default]
    Whole,
    /// A segment of the model that starts from recorded values.
    Part {
        /// True if the unit includes the embeddings.
        embed: bool,
        /// Layers that the unit contains.
        layers: Range<usize>,
        /// True if the unit includes the head.
        head: bool,
        /// True if the unit includes the choices of a greedy continuation.
        ends: bool,
    },
    /// The continuation after the recorded passes, which needs a run of the whole model.
    Continuation,
}

impl Unit {
    /// Returns the segment of the model to run; `None` for the whole model.
    pub fn part(&self) -> Option<ModelSegment> {
        match self {
            Unit::Part { embed, layers, head, .. } => {
                Some(ModelSegment { embed: *embed, layers: layers.clone(), head: *head })
            }
            Unit::Whole | Unit::Continuation => None,
        }
    }

    /// Returns true if a site is judged in this unit, for a model with `n_layers` layers. Sites of higher
    /// layers count as the last layer.
    pub(crate) fn contains(&self, site: Site, n_layers: usize) -> bool {
        let Unit::Part { embed, layers, head, ends } = self else {
            return *self == Unit::Whole || site.point == Point::Generated;
        };
        match (site.layer, site.point) {
            (Some(layer), _) => layers.contains(&layer.min(n_layers.saturating_sub(1))),
            (None, point) if point == Point::Tokens || point.is_before_layers() => *embed,
            (None, Point::Generated) => *ends,
            (None, _) => *head,
        }
    }

    /// Returns true if the unit judges the choice of tokens.
    pub(crate) fn has_choices(&self, selection: &Selection) -> bool {
        match self {
            Unit::Whole => true,
            Unit::Part { head, .. } => *head,
            Unit::Continuation => !selection.checkpoints.contains(&Checkpoint::Argmax),
        }
    }
}

/// "embeddings", "layers 3-5", "layer 79, head".
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unit::Part { embed, layers, head, .. } = self else {
            return f.write_str(if *self == Unit::Whole { "the whole model" } else { "continuation" });
        };
        let of_layers = match layers.len() {
            0 => None,
            1 => Some(format!("layer {}", layers.start)),
            _ => Some(format!("layers {}-{}", layers.start, layers.end - 1)),
        };
        let parts = [embed.then(|| "embeddings".to_owned()), of_layers, head.then(|| "head".to_owned())];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// Returns the input site of a layer in a pass. The layer after the last one is the head.
pub(crate) fn input_of(layer: usize, pass: usize) -> Site {
    match layer.checked_sub(1) {
        None => Site { point: Point::Embed, layer: None, pass: Some(pass) },
        before => Site { point: Point::BlockOut, layer: before, pass: Some(pass) },
    }
}

/// Returns the tokens that the engine read after the dump's recorded passes, according to its continuation.
pub fn unread(manifest: &Manifest) -> &[u32] {
    let read = manifest.passes.last().map_or(0, |pass| pass.end());
    let chosen = read.checked_sub(manifest.input.tokens.len());
    match (&manifest.generated, chosen) {
        (Some(generated), Some(chosen)) => {
            generated.get(chosen..generated.len().saturating_sub(1)).unwrap_or_default()
        }
        _ => &[],
    }
}

/// Returns the units of a comparison in data-flow order, for a model of `n_layers` layers and a computed type. A
/// unit starts at a layer whose input is recorded in every pass in the computed type; a smaller stored type or a
/// sketch is not enough. A run that evaluates its tokens again from the start is one unit.
pub fn units(model: &dyn Model, dump: &Dump, computed: DType, selection: &Selection) -> Vec<Unit> {
    let n_layers = model.dimensions().n_layers;
    if Crossing::of(model, &dump.manifest).is_some_and(|crossing| crossing.is_held(&dump.manifest)) {
        return vec![Unit::Whole];
    }
    let bounds = [starts(dump, n_layers, computed), vec![stations(n_layers)]].concat();
    between(&bounds, n_layers, &dump.manifest, selection)
}

/// Returns the number of stations (parts) of a model: embeddings, layers, head.
pub(super) fn stations(n_layers: usize) -> usize {
    n_layers + 2
}

/// Returns the stations (model parts) at which the units of the plan begin.
pub(super) fn starts(dump: &Dump, n_layers: usize, computed: DType) -> Vec<usize> {
    let passes = dump.manifest.passes.len();
    let is_held = |site: Site| {
        let stored = dump.row(site).and_then(|row| row.dtype().ok());
        dump.holds(site) && stored.is_some_and(|stored| coarser(stored, computed).is_none())
    };
    let begins = |layer: usize| (0..passes).all(|pass| is_held(input_of(layer, pass)));
    (0..stations(n_layers)).filter(|&station| station == 0 || begins(station - 1)).collect()
}

/// Returns the selected units between stations, in order. If they cover all stations, the continuation is
/// last.
pub(super) fn between(
    bounds: &[usize],
    n_layers: usize,
    manifest: &Manifest,
    selection: &Selection,
) -> Vec<Unit> {
    let continues = !unread(manifest).is_empty();
    let generates = selection.checkpoints.contains(&Checkpoint::Generation);
    let is_asked = SelectedStations { selection, n_layers, continues };
    let stations = stations(n_layers);
    let parts = bounds.windows(2).filter_map(|bounds| {
        let asked = (bounds[0]..bounds[1]).rev().find(|&station| is_asked.of(station))?;
        let (first, end) = (bounds[0], asked + 1);
        let layers = first.max(1) - 1..(end.min(n_layers + 1)).max(1) - 1;
        let head = end == stations;
        Some(Unit::Part { embed: first == 0, layers, head, ends: head && !continues })
    });
    let goes_on = continues && generates && bounds.last() == Some(&stations);
    parts.chain(goes_on.then_some(Unit::Continuation)).collect()
}

/// The selected sites, grouped by station.
struct SelectedStations<'s> {
    selection: &'s Selection,
    n_layers: usize,
    continues: bool,
}

impl SelectedStations<'_> {
    fn of(&self, station: usize) -> bool {
        let any = |is_there: &dyn Fn(Point) -> bool| {
            self.selection.checkpoints.iter().any(|checkpoint| checkpoint.points().any(is_there))
        };
        match station {
            0 => self.selection.checkpoints.contains(&Checkpoint::Input),
            station if station > self.n_layers => any(&|point| match point {
                Point::Generated => !self.continues,
                Point::Tokens => false,
                point if point.is_before_layers() => false,
                point => point.scope() != TapScope::Layer,
            }),
            station => {
                let chosen = |layers: &Ranges| layers.contains(station - 1);
                self.selection.layers.as_ref().is_none_or(chosen)
                    && any(&|point| point.scope() == TapScope::Layer)
            }
        }
    }
}
