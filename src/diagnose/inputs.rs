//! Which errors count as introduced: those of places whose inputs the reference holds.

use std::collections::HashSet;

use crate::checkpoint::{Point, Site};
use crate::dump::Dump;

/// Knows for which places the reference holds the inputs, so that what was introduced there could be measured.
pub(super) struct InputsHeld<'d> {
    reference: &'d Dump,
    visited: HashSet<Site>,
}

impl<'d> InputsHeld<'d> {
    pub(super) fn new(visited: &[Site], reference: &'d Dump) -> Self {
        Self { reference, visited: visited.iter().copied().collect() }
    }

    pub(super) fn at(&self, site: Site) -> bool {
        site.point.inputs().iter().all(|candidates| {
            let nearest = candidates.iter().find_map(|&point| self.nearest(point, site));
            nearest.is_none_or(|input| self.reference.holds(input))
        })
    }

    /// The place that `site` reads `point` from, if the run came by it.
    fn nearest(&self, point: Point, site: Site) -> Option<Site> {
        let last_layer = || self.visited.iter().filter_map(|site| site.layer).max();
        let layer = match (site.layer, point) {
            (_, Point::Embed) => None,
            // What enters a layer is what the layer before it made.
            (Some(layer), Point::BlockOut) if site.point != Point::BlockOut => Some(layer.checked_sub(1)?),
            (None, Point::BlockOut) => last_layer(),
            (layer, _) => layer,
        };
        let input = Site { point, layer, pass: site.pass };
        match site.point {
            // The continuation reads every pass's choice; the first stands for all.
            Point::Generated => self.visited.iter().copied().find(|visited| visited.point == point),
            _ => self.visited.contains(&input).then_some(input),
        }
    }
}
