//! Faults in a gate: the gate is missing, has an activation, or is another part of its projection.

use crate::change::{CatalogueEntry, CauseKind, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::gating::exact::GatedProduct;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::ConvGate,
    at: &[Point::ConvIn, Point::ConvGated],
    takes: "none|silu|sigmoid|swapped|order",
    compute: |at, value| by_word(at, value.as_word()?),
    ..CatalogueEntry::PLAIN
}];

/// Computes a product with a changed gate. The parts of the projection are the gate before the convolution, the
/// gate after it, and the input.
fn by_word(at: &SiteContext, word: &str) -> Option<Tensor> {
    let GatedProduct { projected, part, x } = at.stage()?;
    let (all, width) = (projected.row_len(), x.row_len());
    let other_gate = 1usize.checked_sub(*part)?;
    let of = |part: usize| {
        at.n.gathered(&[projected], x.shape(), |flat| (0, flat / width * all + part * width + flat % width))
    };
    let activated = |activation| at.n.gated_by_part(&at.n.activation(&of(*part), activation), 0, x);
    match word {
        "none" => Some(x.clone()),
        "silu" => Some(activated(Activation::Silu)),
        "sigmoid" => Some(activated(Activation::Sigmoid)),
        // The two gates in place of each other.
        "swapped" => Some(at.n.gated_by_part(projected, other_gate, x)),
        // Parts in the order input, gate, gate.
        "order" if at.site.point == Point::ConvIn => Some(at.n.gated_by_part(projected, 1, &of(0))),
        "order" => Some(at.n.gated_by_part(projected, all / width - 1, x)),
        _ => None,
    }
}
