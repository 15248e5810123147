//! Corrupted elements of norm weights and of embedding rows.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, rounded_to};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::embedding::faults::EmbeddingInputs;
use crate::ops::norm::exact::{LayerNormalisation, RmsNormalisation};
use crate::ops::norm::faults::{NORMS, input, own_eps, statistics, with_gains};
use crate::tensor::Tensor;
use crate::weight::DType;

/// Maximum number of wrong elements; more have another cause.
const MOST: usize = 4;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::WeightCorruption,
        is_local: true,
        at: NORMS,
        takes: "77=0.5",
        compute: |at, value| {
            let edits = numbers(value.as_word()?)?;
            let is_one = |gains: &[f32]| edits.iter().all(|(at, _)| *at < gains.len());
            is_one(&gains(at)?).then(|| with_gains(at, |gains| edited(gains, &edits)))?
        },
        read: read_gains,
        usual: |at| {
            let gain = gains(at).and_then(|gains| gains.get(1).copied()).unwrap_or(1.0);
            vec![ChangeValue::Word(format!("1={}", rounded_to(3, f64::from(gain) * 1.5 + 0.1) as f32))]
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::WeightCorruption,
        is_local: true,
        at: &[Point::Embed],
        takes: "504:33=0.06",
        compute: |at, value| with_elements(at, value.as_word()?),
        read: read_elements,
        usual: |at| {
            let token = EmbeddingInputs::of(at).and_then(|made| made.tokens.first().copied());
            token.map(|token| ChangeValue::Word(format!("{token}:3=0.75"))).into_iter().collect()
        },
        ..CatalogueEntry::PLAIN
    },
];

/// Parses `5=0.25,77=1`.
fn numbers(word: &str) -> Option<Vec<(usize, f32)>> {
    let one = |part: &str| {
        let (at, number) = part.split_once('=')?;
        Some((at.parse().ok()?, number.parse().ok().filter(|number: &f32| number.is_finite())?))
    };
    word.split(',').map(one).collect()
}

fn edited(values: &[f32], edits: &[(usize, f32)]) -> Vec<f32> {
    let mut values = values.to_vec();
    edits.iter().for_each(|&(at, number)| values[at] = number);
    values
}

fn gains(at: &SiteContext) -> Option<Vec<f32>> {
    let of_rms = at.stage::<RmsNormalisation>().map(|rms| rms.norm.gains().collect());
    of_rms.or_else(|| Some(at.stage::<LayerNormalisation>()?.norm.weight.clone()))
}

/// Estimates each channel's gain by least squares over all rows; returns the outliers.
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
    if wrong.is_empty() || wrong.len() > MOST {
        return Vec::new();
    }
    let told: Vec<String> = wrong
        .iter()
        .map(|&at| format!("{at}={}", plainest(read[at], (4.0 * usual).max(1e-7 * read[at].abs()))))
        .collect();
    vec![ChangeValue::Word(told.join(","))]
}

/// Returns the number with the fewest digits within `off` of `read`.
fn plainest(read: f64, off: f64) -> f32 {
    let mut rounded = (1..6).map(|digits| rounded_to(digits, read));
    rounded.find(|rounded| (rounded - read).abs() <= off).unwrap_or(read) as f32
}

/// Parses `504:33=0.06`: token id, channel, value.
fn elements(word: &str) -> Option<Vec<(u32, usize, f32)>> {
    let one = |part: &str| {
        let (token, rest) = part.split_once(':')?;
        let [(at, number)] = numbers(rest)?[..] else { return None };
        Some((token.parse().ok()?, at, number))
    };
    word.split(',').map(one).collect()
}

fn with_elements(at: &SiteContext, word: &str) -> Option<Tensor> {
    let (made, edits) = (EmbeddingInputs::of(at)?, elements(word)?);
    let rows = made.rows(at);
    let (width, shape) = (rows.row_len(), rows.shape().to_vec());
    let mut data = rows.into_data();
    for (row, token) in data.chunks_mut(width).zip(&made.tokens) {
        for (_, channel, number) in edits.iter().filter(|(of, ..)| of == token) {
            *row.get_mut(*channel)? = *number;
        }
    }
    Some(made.of_rows(at, Tensor::new(&shape, data)))
}

/// Finds table elements that differ in the engine's embedding rows.
fn read_elements(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(made) = EmbeddingInputs::of(at) else { return Vec::new() };
    let rows = made.rows(at);
    let (width, read) = (rows.row_len(), made.rows_of(theirs));
    let largest = rows.data().iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let short = if at.n.activation_type() == DType::F32 { 1e-6 } else { 0.006 };
    let differs = |flat: &usize| {
        let own = f64::from(rows.data()[*flat]);
        (read[*flat] - own).abs() > short * own.abs() + 1e-6 * f64::from(largest)
    };
    let mut wrong: Vec<(u32, usize, f64)> = (0..read.len())
        .filter(differs)
        .map(|flat| (made.tokens[flat / width], flat % width, read[flat]))
        .collect();
    wrong.sort_by_key(|&(token, channel, _)| (token, channel));
    wrong.dedup_by_key(|&mut (token, channel, _)| (token, channel));
    if wrong.is_empty() || wrong.len() > MOST {
        return Vec::new();
    }
    let told = wrong.iter().map(|&(token, channel, value)| {
        format!("{token}:{channel}={}", plainest(value, short * value.abs() / 2.0))
    });
    vec![ChangeValue::Word(told.collect::<Vec<_>>().join(","))]
}
