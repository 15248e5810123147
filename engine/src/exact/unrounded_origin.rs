//! Values before rounding. A kernel that fuses two operations stores the rounded value and continues with the
//! unrounded one.

use std::sync::Arc;

use crate::exact::float::Float;
use crate::exact::operation::{Node, is_given, node_of};
use crate::exact::profile::Profile;
use crate::tensor::{Tensor, ValueOrigin};

/// Origin of the value that a recorded tensor had before rounding. Some fused kernels read this unrounded value;
/// other operations do not.
pub(crate) enum UnroundedOrigin {
    /// The unrounded value is the result of this operation, whose inputs are recorded as well.
    Of(Arc<Node>),
    /// The unrounded value is any number that rounds to the recorded value.
    Unknown {
        /// True if the values are sums.
        is_sum: bool,
    },
}

impl UnroundedOrigin {
    /// Returns true if the values are results of a sum.
    pub(crate) fn is_sum(&self) -> bool {
        match self {
            UnroundedOrigin::Of(node) => node.stage.is_sum(),
            UnroundedOrigin::Unknown { is_sum } => *is_sum,
        }
    }

    /// Returns the value before rounding, if the tensor's origin records it.
    pub(crate) fn of(origin: &ValueOrigin) -> Option<Arc<Self>> {
        origin.source.clone()?.downcast().ok()
    }
}

/// Replaces `computed` by recorded values. The recorded values keep the operation as their origin if a kernel may
/// continue with them unrounded.
pub fn in_place_of(computed: &Tensor, given: Tensor) -> Tensor {
    let [whole] = computed.origins() else { return given };
    let Some(node) = node_of(whole).filter(|node| node.stage.is_fused()) else { return given };
    if given.shape() != computed.shape() || node.profile.stream() == Float::F32 {
        return given;
    }
    let is_certain = node.stage.inputs().into_iter().all(is_known);
    let is_sum = node.stage.is_sum();
    let before = if is_certain { UnroundedOrigin::Of(node) } else { UnroundedOrigin::Unknown { is_sum } };
    given.computed_by(Arc::new(before))
}

/// Returns true if an input has no uncertainty: a recorded value, a recorded value times a constant of the model,
/// or a row of a table.
fn is_known(input: &Tensor) -> bool {
    let mut nodes = input.origins().iter().filter_map(node_of);
    nodes.all(|node| node.depth == 1 && node.stage.is_certain())
}

/// Marks summands as possibly unrounded without keeping their operations, since a chain of sums would keep all
/// earlier sums in memory.
pub(crate) fn without_sums(x: Tensor) -> Tensor {
    if x.origins().is_empty() || !is_given(&x) {
        return x;
    }
    let origins = x.origins().iter().cloned().map(without_sum).collect();
    x.with_origins(origins)
}

fn without_sum(origin: ValueOrigin) -> ValueOrigin {
    let reads_others =
        |tensor: &Tensor| tensor.origins().iter().any(|origin| UnroundedOrigin::of(origin).is_some());
    match UnroundedOrigin::of(&origin).as_deref() {
        Some(UnroundedOrigin::Of(node)) if node.stage.inputs().into_iter().any(reads_others) => {
            ValueOrigin { source: Some(Arc::new(UnroundedOrigin::Unknown { is_sum: true })), ..origin }
        }
        _ => origin,
    }
}

/// Marks the values that a run starts from as unrounded results: of a sum, or otherwise of a norm.
pub fn of_a_kernel(given: Tensor, is_sum: bool, profile: &Profile) -> Tensor {
    match given.origins().is_empty() && profile.stream() != Float::F32 {
        true => given.computed_by(Arc::new(UnroundedOrigin::Unknown { is_sum })),
        false => given,
    }
}
