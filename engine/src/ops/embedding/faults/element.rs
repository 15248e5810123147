//! Corrupted elements of embedding rows.

use crate::change::{
    CatalogueEntry, CauseKind, ChangeValue, MOST_ELEMENTS, SiteContext, element_numbers, plainest,
};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::embedding::faults::EmbeddingInputs;
use crate::tensor::Tensor;
use crate::weight::DType;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::WeightCorruption,
    is_local: true,
    at: &[Point::Embed],
    takes: "504:33=0.06",
    compute: |at, value| with_elements(at, value.as_word()?),
    read: read_elements,
    usual: Some(|at| {
        let token = EmbeddingInputs::of(at).and_then(|made| made.tokens.first().copied());
        token.map(|token| ChangeValue::Word(format!("{token}:3=0.75"))).into_iter().collect()
    }),
    ..CatalogueEntry::PLAIN
}];

/// Parses `504:33=0.06`: token id, channel, value.
fn elements(word: &str) -> Option<Vec<(u32, usize, f32)>> {
    let one = |part: &str| {
        let (token, rest) = part.split_once(':')?;
        let [(at, number)] = element_numbers(rest)?[..] else { return None };
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
    let (width, Some(read)) = (rows.row_len(), made.rows_of(theirs)) else { return Vec::new() };
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
    if wrong.is_empty() || wrong.len() > MOST_ELEMENTS {
        return Vec::new();
    }
    let told = wrong.iter().map(|&(token, channel, value)| {
        format!("{token}:{channel}={}", plainest(value, short * value.abs() / 2.0))
    });
    vec![ChangeValue::Word(told.collect::<Vec<_>>().join(","))]
}
