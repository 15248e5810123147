//! Faults in the decay of linear attention: no decay, the wrong sign, no bias, or rates that are confused with
//! their logarithms.

use crate::change::{CatalogueEntry, CauseKind, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::decay::DecayRates;
use crate::ops::decay::exact::Decay;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::LinearDecay,
    at: &[Point::Decay],
    takes: "none|growing|unbiased|stored-rates",
    compute: |at, value| changed(at, value.as_word()?),
    ..CatalogueEntry::PLAIN
}];

fn changed(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Decay { a, rates } = at.stage()?;
    let with = |rates: DecayRates| at.n.decay(a, &rates);
    let own = rates.clone();
    match word {
        "none" => Some(Tensor::new(a.shape(), vec![0.0; a.data().len()])),
        "growing" => Some(at.n.mapped(&with(own), |g, _| -g, 0.0)),
        "unbiased" => Some(with(DecayRates { bias: vec![0.0; rates.bias.len()], ..own })),
        // Hugging Face files store `A_log`, GGUF files `-exp(A_log)`: one is read as the other.
        "stored-rates" => Some(with(DecayRates { are_logarithms: !rates.are_logarithms, ..own })),
        _ => None,
    }
}
