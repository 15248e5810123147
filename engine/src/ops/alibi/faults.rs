//! Changes of ALiBi: no bias, and other slopes.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, FactorEstimate, SiteContext};
use crate::checkpoint::Point;
use crate::exact::node_of;
use crate::numerics::Numerics;
use crate::ops::alibi::distance;
use crate::ops::alibi::exact::BiasedScores;
use crate::ops::attention::Mask;
use crate::ops::attention::exact::Softmax;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::Alibi,
    at: &[Point::AttnWeights],
    takes: "none|reversed|geometric|0.5",
    own: |at| biased(at).map_or(ChangeValue::Nothing, |_| ChangeValue::Number(1.0)),
    compute: |at, value| match value.as_word() {
        None => with_slopes(at, |slopes| scaled(slopes, value.number()? as f32)),
        Some("none") => biased(at).map(|(scores, _, mask)| at.n.softmax(&scores, mask)),
        Some("reversed") => with_slopes(at, |slopes| scaled(slopes, -1.0)),
        Some("geometric") => with_slopes(at, geometric),
        Some(_) => None,
    },
    read: read_factor,
    usual: Some(|at| match biased(at) {
        Some(_) => ["none", "reversed", "geometric"].map(ChangeValue::word).into(),
        None => Vec::new(),
    }),
    ..CatalogueEntry::PLAIN
}];

/// Common factors of slopes. An estimate becomes one of them if the difference is within its uncertainty.
const USUAL: [f64; 4] = [2.0, 0.5, 0.25, 4.0];

/// Returns the scores before ALiBi, the slopes, and the mask.
fn biased(at: &SiteContext) -> Option<(Tensor, Vec<f32>, Mask)> {
    let Softmax { scores, mask, .. } = at.stage()?;
    let [whole] = scores.origins() else { return None };
    let node = node_of(whole)?;
    let BiasedScores { scores, slopes, .. } = node.operation()?;
    Some((scores.clone(), slopes.clone(), *mask))
}

/// Computes the attention weights with other slopes.
fn with_slopes(at: &SiteContext, change: impl Fn(&[f32]) -> Option<Vec<f32>>) -> Option<Tensor> {
    let (scores, slopes, mask) = biased(at)?;
    Some(at.n.softmax(&at.n.add_alibi(&scores, &change(&slopes)?, mask), mask))
}

fn scaled(slopes: &[f32], factor: f32) -> Option<Vec<f32>> {
    (factor != 1.0).then(|| slopes.iter().map(|slope| slope * factor).collect())
}

/// Returns one geometric series of slopes for all heads, as in engines that expect a power of two as the number of
/// heads.
fn geometric(slopes: &[f32]) -> Option<Vec<f32>> {
    let heads = slopes.len();
    let slope = |head: usize| (-8.0 * (head + 1) as f32 / heads as f32).exp2();
    (!heads.is_power_of_two()).then(|| (0..heads).map(slope).collect())
}

/// Estimates the factor of the slopes. In each row, log(weight) - score is linear in the bias.
fn read_factor(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some((scores, slopes, mask)) = biased(at) else { return Vec::new() };
    let &[_, tokens, keys] = scores.shape() else { return Vec::new() };
    let of_row = |row: usize| {
        let (slope, query) = (f64::from(slopes[row / tokens]), mask.position + row % tokens);
        let seen = mask.visible(row % tokens, keys).filter(move |key| theirs[row * keys + key] > 0.0);
        let scores = &scores;
        let pairs: Vec<[f64; 3]> = seen
            .map(|key| {
                let weight = theirs[row * keys + key];
                let beside = weight.ln() - f64::from(scores.data()[row * keys + key]);
                [weight, slope * f64::from(distance(key, query)), beside]
            })
            .collect();
        let sum: f64 = pairs.iter().map(|[weight, ..]| weight).sum();
        let mean = |of: usize| pairs.iter().map(|pair| pair[0] * pair[of]).sum::<f64>() / sum;
        let [x, y] = [mean(1), mean(2)];
        pairs.into_iter().map(move |pair| (pair[0].sqrt() * (pair[1] - x), pair[0].sqrt() * (pair[2] - y)))
    };
    let pairs = (0..scores.data().len() / keys.max(1)).flat_map(of_row);
    FactorEstimate::read(pairs).map_or(Vec::new(), |factor| factor.values(at, &USUAL))
}
