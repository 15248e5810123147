//! Faults in the L2 norm of queries and keys: no norm, the mean of squares in place of their sum, or another
//! epsilon.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::l2_norm::L2Norm;
use crate::ops::l2_norm::exact::L2Normalisation;
use crate::tensor::Tensor;

const UNITS: &[Point] = &[Point::QUnit, Point::KUnit];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::NormMissing,
        at: UNITS,
        compute: |at, _| Some(at.stage::<L2Normalisation>()?.x.clone()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormKind,
        at: UNITS,
        takes: "rms",
        compute: |at, value| (value.as_word()? == "rms").then(|| of_means(at)).flatten(),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormEps,
        at: UNITS,
        takes: "1e-6",
        own: |at| {
            let norm = at.stage::<L2Normalisation>();
            norm.map_or(ChangeValue::Nothing, |norm| ChangeValue::Number(norm.norm.eps.into()))
        },
        compute: |at, value| with(at, |norm| Some(L2Norm { eps: value.number()? as f32, ..norm })),
        usual: Some(|_| [1e-6, 1e-5, 1e-12, 1e-3].map(ChangeValue::Number).into()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormVariance,
        at: UNITS,
        takes: "largest|added",
        compute: |at, value| {
            let is_least = match value.as_word()? {
                "largest" => true,
                "added" => false,
                _ => return None,
            };
            with(at, |norm| Some(L2Norm { is_least, ..norm }))
        },
        ..CatalogueEntry::PLAIN
    },
];

fn with(at: &SiteContext, change: impl Fn(L2Norm) -> Option<L2Norm>) -> Option<Tensor> {
    let L2Normalisation { x, norm } = at.stage()?;
    Some(at.n.l2_norm(x, change(*norm)?))
}

/// Computes RMSNorm without a weight, which equals the L2 norm times the root of the row's length.
fn of_means(at: &SiteContext) -> Option<Tensor> {
    let L2Normalisation { x, norm } = at.stage()?;
    let root = (norm.width as f64).sqrt();
    Some(at.n.mapped(&at.n.l2_norm(x, *norm), |value, root| value * root, root))
}
