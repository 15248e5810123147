//! Faults in the norm of a gated output.

use crate::change::{CatalogueEntry, CauseKind};
use crate::checkpoint::Point;
use crate::exact::node_of;
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::activation::exact::Nonlinearity;
use crate::ops::norm::RmsNorm;
use crate::ops::norm::exact::RmsNormalisation;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::GatedNorm,
    at: &[Point::RecurrentNorm],
    takes: "after|none|sigmoid|unnormed|ungrouped",
    compute: |at, value| {
        let RmsNormalisation { x, norm } = at.stage()?;
        let node = node_of(x.origins().first()?)?;
        let Nonlinearity { x: gate, up, .. } = node.operation()?;
        let out = up.as_ref()?;
        match value.as_word()? {
            // The gate multiplies the normed output.
            "after" => Some(at.n.gated(gate, &at.n.rms_norm(out, norm), Activation::Silu)),
            "none" => Some(at.n.rms_norm(out, norm)),
            "sigmoid" => Some(at.n.rms_norm(&at.n.gated(gate, out, Activation::Sigmoid), norm)),
            // One mean square for all groups of heads.
            "ungrouped" if norm.groups > 1 => {
                let gated = at.n.gated(gate, out, Activation::Silu);
                Some(at.n.rms_norm(&gated, &RmsNorm { groups: 1, ..norm.clone() }))
            }
            "unnormed" => Some(at.n.gated(gate, out, Activation::Silu)),
            _ => None,
        }
    },
    ..CatalogueEntry::PLAIN
}];
