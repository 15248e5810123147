//! Changes of a learned low-rank residual (LAuReL, Menghani et al., 2024): the stream that it is added to, and the factor of
//! the sum.

use crate::change::outer_operations::made_by;
use crate::change::{CatalogueEntry, CauseKind, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::addition::exact::Addition;
use crate::ops::scaling::exact::Scaling;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::LowRankResidual,
        at: &[Point::LaurelOut],
        takes: "none|alone",
        compute: |at, value| {
            let Addition { a: input, b: low_rank } = at.stage()?;
            match value.as_word()? {
                "none" => Some(input.clone()),
                "alone" => Some(low_rank.clone()),
                _ => None,
            }
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::LowRankResidual,
        at: &[Point::LaurelResidual],
        takes: "unscaled|halved|missing",
        compute: |at, value| combined(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
];

/// Computes the sum of the stream and the low-rank residual without a factor, with the factor 1/2, or without the residual.
fn combined(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Scaling { x: sum, by } = at.stage()?;
    match word {
        "unscaled" => Some(sum.clone()),
        "halved" => Some(at.n.scale(sum, by.with(0.5))),
        "missing" => Some(made_by(sum)?.operation::<Addition>()?.a.clone()),
        _ => None,
    }
}
