//! Faults in a sparse gate: no gate, another standard deviation, or values above the threshold that are not
//! reduced.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, rounded_to};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::sparse_gate::GateSparsity;
use crate::ops::sparse_gate::exact::SparseGating;
use crate::tensor::Tensor;

const WORDS: [&str; 5] = ["none", "relu", "sample", "population", "kept"];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::ActivationSparsity,
    keys: Some(["activation_sparsity_pattern", "activation_sparsity_scale"]),
    at: &[Point::FfnSparse],
    takes: "0.9|none|relu|sample|population|kept",
    own: |at| {
        let own = at.stage().map(|op: &SparseGating| rounded_to(3, share(op.sparsity.quantile.into())));
        own.map_or(ChangeValue::Nothing, ChangeValue::Number)
    },
    compute: |at, value| match (value.number(), value.as_word()) {
        (Some(probability), _) => {
            let SparseGating { gate, sparsity } = at.stage()?;
            let GateSparsity { quantile, .. } = GateSparsity::of(probability as f32)?;
            Some(at.n.sparse_gate(gate, GateSparsity { quantile, ..*sparsity }))
        }
        (None, word) => by_word(at, word?),
    },
    read,
    usual: Some(|_| WORDS.map(ChangeValue::word).into()),
    ..CatalogueEntry::PLAIN
}];

/// Returns the share of normally distributed values below a quantile.
fn share(quantile: f64) -> f64 {
    (1.0 + libm::erf(quantile * std::f64::consts::FRAC_1_SQRT_2)) / 2.0
}

/// Estimates the share of zeros from the thresholds of all rows, rounded to three and to two digits, as
/// configurations state it. A row's threshold is estimated from the smallest value above it, which has the smallest
/// rounding error.
fn read(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(SparseGating { gate, sparsity }) = at.stage() else { return Vec::new() };
    let width = gate.row_len();
    let quantile = |(row, theirs): (usize, &[f64])| {
        let above = theirs.iter().enumerate().filter(|(_, above)| **above > 0.0);
        let (at, above) = above.min_by(|a, b| a.1.total_cmp(b.1))?;
        let row = gate.row(row);
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
        let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
        let deviation = (squares / f64::from(sparsity.divisor(width))).sqrt();
        Some((f64::from(row[at]) - above - mean) / deviation)
    };
    let quantiles: Vec<f64> = theirs.chunks_exact(width).enumerate().filter_map(quantile).collect();
    let average = quantiles.iter().sum::<f64>() / quantiles.len() as f64;
    [3, 2].map(|digits| ChangeValue::Number(rounded_to(digits, share(average)))).into()
}

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
