//! Residuals that were given, as they were before they were rounded: kernels that fuse an addition with the norm behind it
//! round what they store, and norm what they have.

use std::sync::Arc;

use crate::exact::float::Float;
use crate::exact::profile::Profile;
use crate::exact::stage::{Node, node_of};
use crate::tensor::{Origin, Tensor};

/// What given values were before they were rounded, which some engines go on with: the origin of a tensor that is none of
/// the numbers that operations start from.
pub enum Unrounded {
    /// What that operation, of values that are given as well, comes to.
    Of(Arc<Node>),
    /// Any numbers that round to them.
    Unknown,
}

impl Unrounded {
    /// What an origin tells of it.
    pub(super) fn of(origin: &Origin) -> Option<Arc<Self>> {
        origin.source.clone()?.downcast().ok()
    }
}

/// Values that take the place of `computed`, where these were made as the sum of two that were given.
pub fn in_place_of(computed: &Tensor, given: Tensor) -> Tensor {
    let [whole] = computed.origins() else { return given };
    let Some(node) = node_of(whole).filter(|node| node.stage.is_sum()) else { return given };
    if given.shape() != computed.shape() || node.profile.stream() == Float::F32 {
        return given;
    }
    let is_known = node.stage.inputs().into_iter().all(is_given_or_times);
    let before = if is_known { Unrounded::Of(node) } else { Unrounded::Unknown };
    given.computed_by(Arc::new(before))
}

/// Whether a summand was given, or is what was given times a number of the model: nothing of it is unknown.
fn is_given_or_times(summand: &Tensor) -> bool {
    let mut nodes = summand.origins().iter().filter_map(node_of);
    nodes.all(|node| node.depth == 1 && node.stage.is_multiple())
}

/// Values that a run starts with, which were the result of a sum.
pub fn of_a_sum(given: Tensor, profile: &Profile) -> Tensor {
    match given.origins().is_empty() && profile.stream() != Float::F32 {
        true => given.computed_by(Arc::new(Unrounded::Unknown)),
        false => given,
    }
}
