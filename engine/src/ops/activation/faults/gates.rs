//! Changes of gates: attention's output gate, the gate of a recurrent layer's norm, and β of the gated delta rule.

use std::sync::Arc;

use crate::change::{CatalogueEntry, CauseKind, SiteContext};
use crate::checkpoint::Point;
use crate::exact::{Node, node_of};
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::activation::exact::Nonlinearity;
use crate::ops::norm::exact::RmsNormalisation;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::AttnGate,
        at: &[Point::AttnGated],
        takes: "none|silu",
        compute: |at, value| gated(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::GatedNorm,
        at: &[Point::RecurrentNorm],
        takes: "before|none|sigmoid|unnormed",
        compute: |at, value| match value.as_word()? {
            "before" => before_norm(at),
            "unnormed" => without_norm(at),
            word => gated(at, word),
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::LinearBeta,
        at: &[Point::Beta],
        takes: "one|logit|doubled",
        compute: |at, value| share(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
];

/// Returns the gate that the operation multiplies by, if it multiplies by one.
fn gate<'a>(at: &'a SiteContext) -> Option<&'a Tensor> {
    let Nonlinearity { x, up: Some(_), .. } = at.stage()? else { return None };
    Some(x)
}

/// Computes the operation's result without its gate, or with another activation of the gate.
fn gated(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Nonlinearity { x, up, activation } = at.stage()?;
    let up = up.as_ref()?;
    match word {
        "none" => Some(up.clone()),
        "silu" if *activation != Activation::Silu => Some(at.n.gated(x, up, Activation::Silu)),
        "sigmoid" if *activation != Activation::Sigmoid => Some(at.n.gated(x, up, Activation::Sigmoid)),
        _ => None,
    }
}

/// Computes β of the gated delta rule with a known mistake: as 1, without the sigmoid, or doubled.
fn share(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Nonlinearity { x, .. } = at.stage()?;
    match word {
        "one" => Some(Tensor::new(x.shape(), vec![1.0; x.data().len()])),
        "logit" => Some(x.clone()),
        // Engines that allow negative eigenvalues.
        "doubled" => Some(at.n.mapped(at.value, |share, _| 2.0 * share, 0.0)),
        _ => None,
    }
}

/// Returns the node of the norm whose result the gate multiplies.
fn norm(at: &SiteContext) -> Option<Arc<Node>> {
    let Nonlinearity { up, .. } = at.stage()?;
    up.as_ref()?.origins().first().and_then(node_of)
}

/// Computes the product of the gate and the value before the norm.
fn without_norm(at: &SiteContext) -> Option<Tensor> {
    let (node, gate) = (norm(at)?, gate(at)?);
    let RmsNormalisation { x, .. } = node.operation()?;
    Some(at.n.silu_gated(&x.clone().reshaped(gate.shape()), gate))
}

/// Applies the gate before the norm instead of after it.
fn before_norm(at: &SiteContext) -> Option<Tensor> {
    let (node, product) = (norm(at)?, without_norm(at)?);
    let RmsNormalisation { x, norm } = node.operation()?;
    Some(at.n.rms_norm(&product.reshaped(x.shape()), norm).reshaped(at.value.shape()))
}
