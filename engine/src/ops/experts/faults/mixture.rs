//! Faults in a mixture's weighted sum: experts are added without their weights, with the weights of other experts,
//! or not at all.

use crate::change::{CatalogueEntry, CauseKind, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::experts::exact::ExpertMixture;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::ExpertWeights,
    at: &[Point::FfnOut, Point::RoutedLatent, Point::RoutedOut],
    takes: "unweighted|mean|squared|reversed|zero",
    compute: |at, value| mixed(at, at.stage()?, value.as_word()?),
    ..CatalogueEntry::PLAIN
}];

/// Computes the sum with other weights.
fn mixed(at: &SiteContext, mixture: &ExpertMixture, word: &str) -> Option<Tensor> {
    let ExpertMixture { outputs, weights, scores, is_whole } = mixture;
    let used = weights.row_len();
    let by = |weights: &Tensor| Some(at.n.mix(outputs, weights, scores, *is_whole));
    match word {
        // The routed experts are not added.
        "zero" => by(&Tensor::new(weights.shape(), vec![0.0; weights.data().len()])),
        "unweighted" => by(&Tensor::new(weights.shape(), vec![1.0; weights.data().len()])),
        "mean" if used > 1 => {
            by(&Tensor::new(weights.shape(), vec![1.0 / used as f32; weights.data().len()]))
        }
        // The weight is applied to the input of an expert's last product and to its output.
        "squared" => by(&at.n.mapped(weights, |weight, _| weight * weight, 0.0)),
        // The experts of a token are in another order than their weights.
        "reversed" if used > 1 => {
            let from = |flat: usize| (0, flat / used * used + used - 1 - flat % used);
            by(&at.n.gathered(&[weights], weights.shape(), from))
        }
        _ => None,
    }
}
