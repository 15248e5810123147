//! Properties of our engine that a comparison with its values uses.

use std::sync::Arc;

use crate::align::{AlignedDump, VisibleKeys};
use crate::check::rules::Role;
use crate::checkpoint::{Point, Site};
use crate::exact::{self, Float};
use crate::measure::{ValuePrecision, coarser};
use crate::ops::experts::ExpertGroups;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::DType;

/// Properties of our engine that a comparison uses.
#[derive(Clone, Debug)]
pub struct EngineProperties {
    /// The pairs of head values that RoPE rotates together.
    pub pairing: Option<RopePairing>,
    /// Sliding window of each layer: the number of latest positions it sees. `None` for all positions.
    pub windows: Vec<Option<usize>>,
    /// True if windows are chunks of positions.
    pub has_chunks: bool,
    /// Groups of experts, if a token may choose from some groups only.
    pub expert_groups: Option<ExpertGroups>,
    /// Type to which operations round their results.
    pub computed: DType,
    /// Type of matrix products and of values computed only from them.
    pub products: DType,
    /// Type of the KV cache.
    pub cache: DType,
}

impl EngineProperties {
    /// Returns the sliding window of a site's layer. `None` if the layer sees all positions.
    pub(crate) fn window(&self, site: Site) -> Option<usize> {
        site.layer.and_then(|layer| self.windows.get(layer).copied().flatten())
    }

    /// Returns the number of latest keys that the last of `read` positions sees in a site's layer: a cache may drop the
    /// others. `None` if the layer sees all positions.
    pub(crate) fn least_keys(&self, site: Site, read: usize) -> Option<usize> {
        let window = self.window(site).filter(|&window| window > 0 && read > 0)?;
        Some(if self.has_chunks { (read - 1) % window + 1 } else { window.min(read) })
    }

    /// Returns the type to which the values of a tap are rounded.
    pub(crate) fn computed_at(&self, point: Point) -> DType {
        match point {
            _ if point.is_of_products() || point == Point::AttnScores => self.products,
            Point::KCache | Point::VCache => coarser(self.cache, self.computed).unwrap_or(self.computed),
            _ => self.computed,
        }
    }

    /// Returns the visible entries of a value in a dump that dropped the first `dropped` keys.
    pub(crate) fn visible(&self, held: &AlignedDump, site: Site, dropped: usize) -> VisibleKeys {
        let first_query = held.positions(site).start;
        let rows = held.dump.held_rows(site).map(Arc::from);
        let (window, has_chunks) = (self.window(site), self.has_chunks);
        VisibleKeys { first_query, first_key: dropped, window, has_chunks, rows }
    }

    /// Returns the precision of both sides' values, with the dump in this role.
    pub(super) fn precision(&self, held: &AlignedDump, site: Site, role: Role) -> ValuePrecision {
        let computed = self.computed_at(site.point);
        let (stored, step) = (self.stored(held, site), held.step(site));
        match role {
            Role::Candidate => {
                ValuePrecision { computed, candidate: stored, reference: None, steps: [step, 0.0] }
            }
            Role::Reference => {
                ValuePrecision { computed, candidate: None, reference: stored, steps: [0.0, step] }
            }
        }
    }

    /// Returns the type to which the dump's values were rounded when stored, if smaller than the computed
    /// type.
    pub(super) fn stored(&self, held: &AlignedDump, site: Site) -> Option<DType> {
        coarser(held.stored(site)?, self.computed_at(site.point))
    }

    /// Returns the type to which storing rounded the dump's values. It is smaller than the engine's type, or
    /// than the result type of this operation (e.g. `f32` probabilities).
    pub(super) fn lossy(&self, held: &AlignedDump, site: Site, traced: &Tensor) -> Option<Float> {
        let is_lossy =
            |stored: &Float| exact::type_of_results(traced).is_some_and(|results| stored.loses(results));
        let of_operation = || held.stored(site).and_then(Float::of).filter(is_lossy);
        self.stored(held, site).and_then(Float::of).or_else(of_operation)
    }
}
