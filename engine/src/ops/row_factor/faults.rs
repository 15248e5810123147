//! Changes of factors of rows: temperatures of queries, and weights of experts' inputs.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::row_factor::QueryTemperature;
use crate::ops::row_factor::exact::RowProduct;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::QueryTemperature,
        keys: Some(["attn_temperature_tuning", "attention.temperature_length"]),
        at: &[Point::QScaled],
        takes: "none|from-zero|of-pass|twice|half-floor",
        compute: |at, value| tempered(at, value.as_word()?),
        usual: |_| ["none", "from-zero", "of-pass", "twice", "half-floor"].map(ChangeValue::word).into(),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::ExpertWeights,
        at: &[Point::ExpertIn],
        takes: "unweighted|squared",
        compute: |at, value| weighed(at, value.as_word()?),
        usual: |_| ["unweighted", "squared"].map(ChangeValue::word).into(),
        ..CatalogueEntry::PLAIN
    },
];

/// Multiplies queries by other temperatures.
fn tempered(at: &SiteContext, word: &str) -> Option<Tensor> {
    let RowProduct { x, temperature, .. } = at.stage()?;
    let (temperature, positions) = temperature.as_ref()?;
    let (first, tokens) = (positions.start, positions.len());
    let from = |first: usize| at.n.row_scaled(x, &temperature.factors(first..first + tokens));
    match word {
        "none" => Some(x.clone()),
        // The position without the 1 that is added.
        "from-zero" if first > 0 => Some(from(first - 1)),
        "from-zero" => {
            let rest = temperature.factors(0..tokens - 1).into_data();
            Some(at.n.row_scaled(x, &Tensor::new(&[tokens], [vec![1.0], rest].concat())))
        }
        // Positions in the pass.
        "of-pass" if first > 0 => Some(from(0)),
        "twice" => Some(at.n.tempered(
            &at.n.tempered(x, temperature, positions.clone()),
            temperature,
            positions.clone(),
        )),
        "half-floor" => {
            let other = QueryTemperature { floor: temperature.floor.div_ceil(2), ..*temperature };
            Some(at.n.tempered(x, &other, positions.clone()))
        }
        _ => None,
    }
}

/// Multiplies the inputs of experts by other weights.
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
