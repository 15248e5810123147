//! Corrupted elements of norm weights.

use crate::change::{
    CatalogueEntry, CauseKind, ChangeValue, MOST_ELEMENTS, SiteContext, element_numbers, plainest, rounded_to,
};
use crate::ops::norm::exact::{LayerNormalisation, RmsNormalisation};
use crate::ops::norm::faults::{NORMS, input, own_eps, statistics, with_gains};

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::WeightCorruption,
    is_local: true,
    at: NORMS,
    takes: "77=0.5",
    compute: |at, value| {
        let edits = element_numbers(value.as_word()?)?;
        let is_one = |gains: &[f32]| edits.iter().all(|(at, _)| *at < gains.len());
        is_one(&gains(at)?).then(|| with_gains(at, |gains| edited(gains, &edits)))?
    },
    read: read_gains,
    usual: Some(|at| {
        let gain = gains(at).and_then(|gains| gains.get(1).copied()).unwrap_or(1.0);
        vec![ChangeValue::Word(format!("1={}", rounded_to(3, f64::from(gain) * 1.5 + 0.1) as f32))]
    }),
    ..CatalogueEntry::PLAIN
}];

fn edited(values: &[f32], edits: &[(usize, f32)]) -> Vec<f32> {
    let mut values = values.to_vec();
    edits.iter().for_each(|&(at, number)| values[at] = number);
    values
}

fn gains(at: &SiteContext) -> Option<Vec<f32>> {
    let of_rms = at.stage::<RmsNormalisation>().map(|rms| rms.norm.gains().collect());
    of_rms.or_else(|| Some(at.stage::<LayerNormalisation>()?.norm.weight.clone()))
}

/// Estimates each channel's gain by least squares over all rows. Returns the channels that deviate.
fn read_gains(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let (Some(gains), Some(x), Some(eps)) = (gains(at), input(at), own_eps(at)) else { return Vec::new() };
    let bias = at.stage::<LayerNormalisation>().map(|layer| &layer.norm.bias);
    let (mut up, mut down) = (vec![0.0; gains.len()], vec![0.0; gains.len()]);
    for (x, y) in x.data().chunks(gains.len()).zip(theirs.chunks(gains.len())) {
        let (mean, square) = statistics(at, x);
        let inverse = 1.0 / (square + f64::from(eps)).sqrt();
        for at in 0..gains.len() {
            let normed = (f64::from(x[at]) - mean) * inverse;
            up[at] += (y[at] - bias.map_or(0.0, |bias| f64::from(bias[at]))) * normed;
            down[at] += normed * normed;
        }
    }
    let read: Vec<f64> = up.iter().zip(&down).map(|(up, down)| up / down).collect();
    let off: Vec<f64> = read.iter().zip(&gains).map(|(read, gain)| (read - f64::from(*gain)).abs()).collect();
    let mut sorted = off.clone();
    sorted.sort_by(f64::total_cmp);
    let usual = sorted[sorted.len() / 2];
    let wrong: Vec<usize> = (0..off.len()).filter(|&at| off[at] > 16.0 * usual.max(1e-6)).collect();
    if wrong.is_empty() || wrong.len() > MOST_ELEMENTS {
        return Vec::new();
    }
    let told: Vec<String> = wrong
        .iter()
        .map(|&at| format!("{at}={}", plainest(read[at], (4.0 * usual).max(1e-7 * read[at].abs()))))
        .collect();
    vec![ChangeValue::Word(told.join(","))]
}
