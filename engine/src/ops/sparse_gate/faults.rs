//! Changes of a sparse gate: missing, another deviation, and values above the threshold that keep their size.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::sparse_gate::GateSparsity;
use crate::ops::sparse_gate::exact::SparseGating;
use crate::tensor::Tensor;

const WORDS: [&str; 5] = ["none", "relu", "sample", "population", "kept"];

/// Sparsities of ports.
const USUAL: [f64; 3] = [0.95, 0.9, 0.5];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::ActivationSparsity,
    keys: Some(["activation_sparsity_pattern", "activation_sparsity_scale"]),
    at: &[Point::FfnSparse],
    takes: "0.9|none|relu|sample|population|kept",
    compute: |at, value| match (value.number(), value.as_word()) {
        (Some(probability), _) => {
            let SparseGating { gate, sparsity } = at.stage()?;
            let GateSparsity { quantile, .. } = GateSparsity::of(probability as f32)?;
            Some(at.n.sparse_gate(gate, GateSparsity { quantile, ..*sparsity }))
        }
        (None, word) => by_word(at, word?),
    },
    usual: |_| WORDS.map(ChangeValue::word).into_iter().chain(USUAL.map(ChangeValue::Number)).collect(),
    ..CatalogueEntry::PLAIN
}];

fn by_word(at: &SiteContext, word: &str) -> Option<Tensor> {
    let SparseGating { gate, sparsity } = at.stage()?;
    let of_sample = |is_of_sample| Some(at.n.sparse_gate(gate, GateSparsity { is_of_sample, ..*sparsity }));
    match word {
        "none" => Some(gate.clone()),
        "relu" => Some(at.n.activation(gate, Activation::Relu)),
        "sample" => of_sample(true),
        "population" => of_sample(false),
        // Values above the threshold that are not reduced by it.
        "kept" => {
            let zero = at.n.gathered(&[at.value], &[1], |_| (0, 0)).map(|_| 0.0);
            let is_above = |flat: usize| at.value.data()[flat] > 0.0;
            let from = |flat: usize| if is_above(flat) { (0, flat) } else { (1, 0) };
            Some(at.n.gathered(&[gate, &zero], gate.shape(), from))
        }
        _ => None,
    }
}
