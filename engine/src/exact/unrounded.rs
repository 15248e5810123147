//! Values that were given, as they were before they were rounded: kernels that fuse a sum, a multiple or a norm with what
//! reads it round what they store, and go on with what they have.

use std::sync::Arc;

use crate::exact::float::Float;
use crate::exact::profile::Profile;
use crate::exact::stage::{Node, is_given, node_of};
use crate::tensor::{Origin, Tensor};

/// Value of a recorded tensor before rounding, which some fused engines use: the origin of a tensor that no other
/// operation reads.
pub enum Unrounded {
    /// Result of that operation, whose inputs are recorded as well.
    Of(Arc<Node>),
    /// Any numbers that round to these values.
    Unknown {
        /// True if they are sums.
        is_sum: bool,
    },
}

impl Unrounded {
    /// Returns true if they were the result of a sum.
    pub(super) fn is_sum(&self) -> bool {
        match self {
            Unrounded::Of(node) => node.stage.is_sum(),
            Unrounded::Unknown { is_sum } => *is_sum,
        }
    }

    /// Returns the value before rounding, if the origin knows it.
    pub(super) fn of(origin: &Origin) -> Option<Arc<Self>> {
        origin.source.clone()?.downcast().ok()
    }
}

/// Values that take the place of `computed`, which remember how these were made where a kernel may go on with them unrounded.
pub fn in_place_of(computed: &Tensor, given: Tensor) -> Tensor {
    let [whole] = computed.origins() else { return given };
    let Some(node) = node_of(whole).filter(|node| node.stage.is_fused()) else { return given };
    if given.shape() != computed.shape() || node.profile.stream() == Float::F32 {
        return given;
    }
    let is_certain = node.stage.inputs().into_iter().all(is_known);
    let is_sum = node.stage.is_sum();
    let before = if is_certain { Unrounded::Of(node) } else { Unrounded::Unknown { is_sum } };
    given.computed_by(Arc::new(before))
}

/// Returns true if an input is recorded, a recorded value times a number of the model, or a row of a table: it has no
/// uncertainty.
fn is_known(input: &Tensor) -> bool {
    let mut nodes = input.origins().iter().filter_map(node_of);
    nodes.all(|node| node.depth == 1 && node.stage.is_certain())
}

/// Values to be added, where of sums of others it is enough that they may not have been rounded: a sum would keep all before it.
pub(super) fn without_sums(x: Tensor) -> Tensor {
    if x.origins().is_empty() || !is_given(&x) {
        return x;
    }
    let origins = x.origins().iter().cloned().map(without_sum).collect();
    x.with_origins(origins)
}

fn without_sum(origin: Origin) -> Origin {
    let reads_others =
        |tensor: &Tensor| tensor.origins().iter().any(|origin| Unrounded::of(origin).is_some());
    match Unrounded::of(&origin).as_deref() {
        Some(Unrounded::Of(node)) if node.stage.inputs().into_iter().any(reads_others) => {
            Origin { source: Some(Arc::new(Unrounded::Unknown { is_sum: true })), ..origin }
        }
        _ => origin,
    }
}

/// Values that a run starts with, which were the result of a sum, or else of a norm.
pub fn of_a_kernel(given: Tensor, is_sum: bool, profile: &Profile) -> Tensor {
    match given.origins().is_empty() && profile.stream() != Float::F32 {
        true => given.computed_by(Arc::new(Unrounded::Unknown { is_sum })),
        false => given,
    }
}
