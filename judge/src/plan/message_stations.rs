//! Units of one message in a stream, found from the recorded values.

use std::fmt;
use std::ops::Range;

use crate::align::Selection;
use crate::checkpoint::{Point, Site};
use crate::dump::{Dump, Manifest};
use crate::plan::Unit;
use crate::plan::unit::{between, starts, stations};
use crate::weight::DType;

/// A range of neighbouring stations that one dump covers. Stations are the parts of a model: station 0 is the
/// embeddings, station 1 is layer 0, and the head is the last station.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MessageStations {
    /// First station of each unit, followed by the end of the last unit.
    bounds: Vec<usize>,
    n_layers: usize,
}

impl MessageStations {
    /// Finds the stations that a dump covers. A leading `block_out` is the input of the next layer. Until layer 0 has
    /// been received (`is_first`), values without a recorded input are computed from the tokens, as for a file. The
    /// same applies to a `block_out` of layer 0 without other taps of that layer.
    ///
    /// # Errors
    /// If the dump lacks the input of its first layer or of the layer after its last one; the message
    /// describes the problem.
    pub(crate) fn of(dump: &Dump, n_layers: usize, computed: DType, is_first: bool) -> Result<Self, String> {
        let mut sites: Vec<(usize, Site)> = Vec::new();
        for row in &dump.manifest.tensors {
            let site = row.site()?;
            sites.push((station(site, n_layers)?, site));
        }
        let all = starts(dump, n_layers, computed);
        let first = sites.iter().map(|(station, _)| *station).min().ok_or("the message has no values")?;
        let end = sites.iter().map(|(station, _)| *station).max().unwrap_or(first) + 1;
        let is_input = |(station, site): &&(usize, Site)| *station > first || site.point == Point::BlockOut;
        let may_enter = end > first + 1 && sites.iter().all(|one| is_input(&one));
        let enters = may_enter && all.contains(&(first + 1));
        let is_plain = |(_, site): &(usize, Site)| site.layer.is_none() || site.point == Point::BlockOut;
        let begin = match first {
            0 => 0,
            1 if is_first && sites.iter().all(is_plain) => 0,
            first if enters => first + 1,
            _ if is_first => 0,
            station => return Err(lacks_input(if may_enter { station } else { station - 1 })),
        };
        if end < stations(n_layers) && !all.contains(&end) {
            return Err(lacks_output(end));
        }
        let inside = all.into_iter().filter(|start| (begin..end).contains(start));
        Ok(Self { bounds: inside.chain([end]).collect(), n_layers })
    }

    /// Returns the stations of each unit, selected or not.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Range<usize>> {
        self.bounds.windows(2).map(|bounds| bounds[0]..bounds[1])
    }

    pub(crate) fn lies_in(&self, site: Site, stations: &Range<usize>) -> bool {
        station(site, self.n_layers).is_ok_and(|station| stations.contains(&station))
    }

    /// Returns the layers whose inputs are at the start or end of a unit. The head counts as one more layer.
    pub(crate) fn edges(&self) -> impl Iterator<Item = usize> {
        let inner = |bound: &usize| (1..stations(self.n_layers)).contains(bound);
        self.bounds.iter().copied().filter(inner).map(|bound| bound - 1)
    }

    /// Returns true if the dump covers the head.
    pub(crate) fn has_head(&self) -> bool {
        self.bounds.last() == Some(&stations(self.n_layers))
    }

    /// Returns the unit of these stations, if it is selected, and the continuation after the last one.
    pub(crate) fn units(
        &self,
        piece: &Range<usize>,
        manifest: &Manifest,
        selection: &Selection,
    ) -> Vec<Unit> {
        between(&[piece.start, piece.end], self.n_layers, manifest, selection)
    }
}

/// "embeddings, layer 0".
impl fmt::Display for MessageStations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, end) = (self.bounds[0], self.bounds[self.bounds.len() - 1]);
        let layers = first.max(1) - 1..end.min(self.n_layers + 1).max(1) - 1;
        Unit::Part { embed: first == 0, layers, head: self.has_head(), ends: false }.fmt(f)
    }
}

/// Returns all units of a comparison from the received messages. A gap between two messages becomes one unit.
pub(crate) fn units_of<'p>(
    portions: impl IntoIterator<Item = &'p MessageStations>,
    n_layers: usize,
    manifest: &Manifest,
    selection: &Selection,
) -> Vec<Unit> {
    let mut bounds = vec![0, stations(n_layers)];
    bounds.extend(portions.into_iter().flat_map(|portion| &portion.bounds));
    bounds.sort_unstable();
    bounds.dedup();
    between(&bounds, n_layers, manifest, selection)
}

/// Returns the index of the station (model part) that contains a site.
fn station(site: Site, n_layers: usize) -> Result<usize, String> {
    match (site.layer, site.point) {
        (Some(layer), _) if layer >= n_layers => {
            Err(format!("the message has layer {layer}, but the model has {n_layers} layers, counted from 0"))
        }
        (Some(layer), _) => Ok(layer + 1),
        (None, point) if point.is_before_layers() => Ok(0),
        (None, _) => Ok(n_layers + 1),
    }
}

fn lacks_output(end: usize) -> String {
    let (what, tap) = match end.checked_sub(2) {
        Some(layer) => (format!("layer {layer}"), "block_out"),
        None => ("embeddings".to_owned(), "embed"),
    };
    format!(
        "the message has {what} without {tap}, from which the next layer starts; write {tap} of every pass \
         in the computed type to this message and the next, or write both layers to one message. {ALL_PASSES}"
    )
}

/// Advice if the messages arrive one pass after another.
const ALL_PASSES: &str = "Each message must contain its layers for all passes. If the passes come one after \
                          another, read the tokens in one pass, or write the dump to a file";

fn lacks_input(layer: usize) -> String {
    let input = match layer.checked_sub(1) {
        Some(before) => format!("block_out of layer {before}"),
        None => "embed".to_owned(),
    };
    format!(
        "the message has layer {layer} without its input, {input}; add it for every pass in the computed \
         type, or write both layers to one message. {ALL_PASSES}"
    )
}
