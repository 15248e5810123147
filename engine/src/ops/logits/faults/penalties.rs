//! Faults in which a sampler's penalties on already read tokens change the recorded logits.

use std::collections::BTreeMap;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, FactorEstimate, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::logits::exact::LastRow;
use crate::ops::scaling::Multiplier;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    // Logits are divided by the penalty if they are positive, else multiplied by it.
    CatalogueEntry {
        kind: CauseKind::RepetitionPenalty,
        at: LOGITS,
        takes: "1.1|sampled:1.1",
        own: |_| ChangeValue::Number(1.0),
        compute: |at, value| repetition(at, amount(at, value).filter(|penalty| *penalty > 0.0)? as f32),
        read: |at, theirs| {
            read(at, theirs, &[1.1, 1.05, 1.15, 1.2, 1.3, 1.5], |ours, theirs, _| match ours > 0.0 {
                true => (theirs, ours),
                false => (ours, theirs),
            })
        },
        usual: Some(|at| usual(at, 1.1)),
        ..CatalogueEntry::PLAIN
    },
    // The penalty is subtracted once.
    CatalogueEntry {
        kind: CauseKind::PresencePenalty,
        at: LOGITS,
        takes: "0.5|sampled:0.5",
        own: |_| ChangeValue::Number(0.0),
        compute: |at, value| subtracted(at, amount(at, value)?, |_| 1),
        read: |at, theirs| read(at, theirs, &[], |ours, theirs, _| (1.0, ours - theirs)),
        usual: Some(|at| usual(at, 0.5)),
        ..CatalogueEntry::PLAIN
    },
    // The penalty is subtracted for each time that the token was read.
    CatalogueEntry {
        kind: CauseKind::FrequencyPenalty,
        at: LOGITS,
        takes: "0.5|sampled:0.5",
        own: |_| ChangeValue::Number(0.0),
        compute: |at, value| subtracted(at, amount(at, value)?, |count| count),
        read: |at, theirs| read(at, theirs, &[], |ours, theirs, count| (count as f64, ours - theirs)),
        usual: Some(|at| usual(at, 0.5)),
        ..CatalogueEntry::PLAIN
    },
];

const LOGITS: &[Point] = &[Point::Logits, Point::LastLogits];

/// Largest change of other tokens' logits, as a share of the change of read tokens' logits.
const REST: f64 = 0.1;

/// Returns the penalty at this tap. The logits of all tokens and the logits of the sampled row are separate values:
/// a number applies to the first, `sampled:1.1` only to the sampled row.
fn amount(at: &SiteContext, value: &ChangeValue) -> Option<f64> {
    match is_sampled_row(at) {
        true => value.as_word()?.strip_prefix("sampled:")?.parse().ok(),
        false => value.number(),
    }
    .filter(|amount: &f64| amount.is_finite())
}

/// Returns true if the value is a row of recorded logits.
fn is_sampled_row(at: &SiteContext) -> bool {
    at.stage::<LastRow>().is_some()
}

/// Returns the value of `--suppose` for a penalty at this tap.
fn value_of(at: &SiteContext, penalty: ChangeValue) -> ChangeValue {
    if is_sampled_row(at) { ChangeValue::Word(format!("sampled:{penalty}")) } else { penalty }
}

fn usual(at: &SiteContext, penalty: f64) -> Vec<ChangeValue> {
    vec![value_of(at, ChangeValue::Number(penalty))]
}

/// Scales the logits of tokens already read.
fn repetition(at: &SiteContext, penalty: f32) -> Option<Tensor> {
    let reads = ReadTokens::of(at)?;
    let smaller = at.n.scale(at.value, Multiplier::Divisor(penalty));
    let larger = at.n.scale(at.value, Multiplier::Number(penalty));
    let all = [at.value, &smaller, &larger];
    Some(at.n.gathered(&all, at.value.shape(), |flat| match (reads.count(flat), at.value.data()[flat]) {
        (0, _) => (0, flat),
        (_, logit) if logit > 0.0 => (1, flat),
        _ => (2, flat),
    }))
}

/// Subtracts a multiple of the penalty from the logits of tokens already read.
fn subtracted(at: &SiteContext, penalty: f64, times: fn(usize) -> usize) -> Option<Tensor> {
    let reads = ReadTokens::of(at)?;
    let most = times(reads.counts.last()?.values().copied().max()?);
    let lower = |times: usize| at.n.mapped(at.value, |logit, less| logit - less, penalty * times as f64);
    let lowered: Vec<Tensor> = (1..=most).map(lower).collect();
    let all: Vec<&Tensor> = [at.value].into_iter().chain(&lowered).collect();
    let level = |count: usize| if count == 0 { 0 } else { times(count) };
    Some(at.n.gathered(&all, at.value.shape(), |flat| (level(reads.count(flat)), flat)))
}

/// Estimates a penalty by least squares over the tokens already read. `pair` returns x and y of `y = penalty · x`,
/// given our logit, the engine's logit, and how often the token was read. Returns nothing if other logits changed
/// too.
fn read(
    at: &SiteContext,
    theirs: &[f64],
    known: &[f64],
    pair: fn(f64, f64, usize) -> (f64, f64),
) -> Vec<ChangeValue> {
    let Some(reads) = ReadTokens::of(at) else { return Vec::new() };
    let (mut pairs, mut rest, mut others) = (Vec::new(), 0.0, 0.0f64);
    let mut changed = 0.0;
    for (flat, (&ours, &theirs)) in at.value.data().iter().zip(theirs).enumerate() {
        let (ours, count) = (f64::from(ours), reads.count(flat));
        match count {
            _ if !theirs.is_finite() => {}
            0 => (rest, others) = (rest + (theirs - ours).powi(2), others + 1.0),
            _ => {
                changed += (theirs - ours).powi(2);
                pairs.push(pair(ours, theirs, count));
            }
        }
    }
    let is_of_read_tokens = rest / others.max(1.0) <= REST * REST * changed / pairs.len().max(1) as f64;
    let penalty = FactorEstimate::read(pairs.into_iter()).filter(|_| is_of_read_tokens && changed > 0.0);
    let values = penalty.map_or(Vec::new(), |penalty| penalty.values(at, known));
    values.into_iter().map(|penalty| value_of(at, penalty)).collect()
}

/// Counts of the tokens read before each row of logits.
struct ReadTokens {
    vocabulary: usize,
    /// For each row of logits, counts of all tokens that were read up to that row.
    counts: Vec<BTreeMap<u32, usize>>,
}

impl ReadTokens {
    /// Counts the tokens up to each row. `None` if the tokens are unknown.
    fn of(at: &SiteContext) -> Option<Self> {
        let vocabulary = *at.value.shape().last()?;
        let rows = at.value.data().len() / vocabulary.max(1);
        let first = at.positions.end.checked_sub(rows)?;
        let read = at.tokens.get(..at.positions.end).filter(|_| rows > 0)?;
        let mut count: BTreeMap<u32, usize> = BTreeMap::new();
        let mut counts = Vec::new();
        for (position, &token) in read.iter().enumerate() {
            *count.entry(token).or_default() += 1;
            if position >= first {
                counts.push(count.clone());
            }
        }
        Some(Self { vocabulary, counts })
    }

    /// Returns how often the token of a logit was read.
    fn count(&self, flat: usize) -> usize {
        let token = (flat % self.vocabulary) as u32;
        self.counts[flat / self.vocabulary].get(&token).copied().unwrap_or(0)
    }
}
