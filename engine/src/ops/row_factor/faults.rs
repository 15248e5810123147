//! Changes of factors of rows: temperatures of queries, and weights of experts' inputs.

use crate::change::{CatalogueEntry, CauseKind, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::row_factor::QueryTemperature;
use crate::ops::row_factor::exact::RowProduct;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::QueryTemperature,
        keys: Some(["attn_temperature_tuning", "attention.temperature_scale"]),
        at: &[Point::QScaled],
        takes: "none|from-zero|from-one|of-pass|twice|half-floor",
        compute: |at, value| tempered(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::ExpertWeights,
        at: &[Point::ExpertIn],
        takes: "unweighted|squared",
        compute: |at, value| weighed(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
];

/// Multiplies queries by wrong temperatures.
fn tempered(at: &SiteContext, word: &str) -> Option<Tensor> {
    let RowProduct { x, temperature, .. } = at.stage()?;
    let (temperature, positions) = temperature.as_ref()?;
    let of = |x: &Tensor, other: QueryTemperature| Some(at.n.tempered(x, &other, positions.clone()));
    match word {
        "none" => Some(x.clone()),
        "from-zero" if temperature.offset != 0 => of(x, QueryTemperature { offset: 0, ..*temperature }),
        "from-one" if temperature.offset != 1 => of(x, QueryTemperature { offset: 1, ..*temperature }),
        // Positions in the pass.
        "of-pass" if positions.start > 0 => Some(at.n.tempered(x, temperature, 0..positions.len())),
        "twice" => of(&of(x, *temperature)?, *temperature),
        "half-floor" => of(x, QueryTemperature { floor: temperature.floor.div_ceil(2), ..*temperature }),
        _ => None,
    }
}

/// Multiplies the inputs of experts by wrong weights.
fn weighed(at: &SiteContext, word: &str) -> Option<Tensor> {
    let RowProduct { x, factors, .. } = at.stage()?;
    match word {
        "unweighted" => {
            Some(at.n.row_scaled(x, &Tensor::new(factors.shape(), vec![1.0; factors.data().len()])))
        }
        "squared" => Some(at.n.row_scaled(x, &at.n.mapped(factors, |factor, _| factor * factor, 0.0))),
        _ => None,
    }
}
