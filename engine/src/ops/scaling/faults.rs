//! Changes of the factors of a layer's output, of a layer's embeddings, and of a router's input.

use crate::change::{CatalogueEntry, CauseKind, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::scaling::Multiplier;
use crate::ops::scaling::exact::Scaling;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::LayerScale,
        at: &[Point::BlockOut],
        takes: "none|inverse|twice",
        compute: |at, value| scaled(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::RouterScale,
        at: &[Point::RouterNorm],
        takes: "none|inverse|twice",
        compute: |at, value| scaled(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::LayerScale,
        at: &[Point::LayerInput],
        takes: "none",
        // Without the factor 1/√2, the sum of projected and own embeddings is √2 times as large.
        compute: |at, value| {
            (value.as_word()? == "none")
                .then(|| at.n.mapped(at.value, |x, root| x * root, std::f64::consts::SQRT_2))
        },
        ..CatalogueEntry::PLAIN
    },
];

/// Computes a scaled value with another factor.
fn scaled(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Scaling { x, by } = at.stage()?;
    match word {
        "none" => Some(x.clone()),
        "inverse" => Some(at.n.scale(x, Multiplier::Divisor(by.factor()))),
        "twice" => Some(at.n.scale(at.value, *by)),
        _ => None,
    }
}
