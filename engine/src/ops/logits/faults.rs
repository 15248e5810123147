//! Changes of the sampled row of logits, and of probabilities.

pub(crate) mod penalties;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, FactorEstimate, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::linear::exact::{Integers, Linear};
use crate::ops::logits::exact::{LastRow, Probabilities};
use crate::ops::scaling::Multiplier;
use crate::tensor::Tensor;
use crate::weight::Matrix;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::LogitsRow,
        at: &[Point::LastLogits],
        takes: "first|one-before|5",
        compute: |at, value| row(at, index(at, value)?),
        read: read_row,
        usual: Some(|_| ["first", "one-before"].map(ChangeValue::word).into()),
        ..CatalogueEntry::PLAIN
    },
    // An ignored temperature equals a temperature of 1.
    CatalogueEntry {
        kind: CauseKind::Probs,
        at: &[Point::Probs],
        takes: "0.7",
        names_tap: false,
        own: |at| {
            at.stage::<Probabilities>()
                .map_or(ChangeValue::Nothing, |op| ChangeValue::Number(op.temperature.into()))
        },
        compute: |at, value| {
            let temperature = value.number().filter(|&temperature| temperature > 0.0)?;
            Some(at.n.probabilities(&at.stage::<Probabilities>()?.logits, temperature as f32))
        },
        read: read_temperature,
        usual: Some(|_| TEMPERATURES.map(ChangeValue::Number).into()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::Probs,
        at: &[Point::Probs],
        takes: "log|log10|logits",
        compute: |at, value| unlike_probabilities(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
];

pub(crate) const TEMPERATURES: [f64; 4] = [1.0, 0.7, 0.5, 2.0];

/// Returns the number of logit rows to choose from.
fn rows(at: &SiteContext) -> usize {
    let given = at.stage::<LastRow>().map(|op| op.logits.rows());
    given.or_else(|| Some(product(at)?.0.rows())).unwrap_or(1)
}

/// Returns the input, matrix and bias of the logits, if a dump has no logits for every token.
fn product<'b>(at: &'b SiteContext) -> Option<(&'b Tensor, &'b Matrix, Option<&'b [f32]>)> {
    match at.stage() {
        Some(Linear { x, w, bias }) => Some((x, w, bias.as_deref())),
        None => at.stage::<Integers>().filter(|op| op.factor.is_none()).map(|op| (&op.x, &op.w, None)),
    }
}

/// Returns the row that a value selects. `None` if there is no such row, or if it is the last row, which the model
/// selects.
fn index(at: &SiteContext, value: &ChangeValue) -> Option<usize> {
    let rows = rows(at);
    let index = match value {
        ChangeValue::Word(word) if word == "first" => 0,
        ChangeValue::Word(word) if word == "one-before" && rows > 2 => rows - 2,
        ChangeValue::Number(number) if *number >= 0.0 => *number as usize,
        _ => return None,
    };
    (index + 1 < rows).then_some(index)
}

fn row(at: &SiteContext, index: usize) -> Option<Tensor> {
    if let Some(LastRow { logits }) = at.stage() {
        return Some(at.row(logits, index, logits.row_len()));
    }
    let (x, w, bias) = product(at)?;
    Some(at.n.linear_of_pass(&at.row(x, index, x.row_len()), w, bias, x.rows()))
}

/// Finds the row of logits, other than the last, that is nearest to the engine's.
fn read_row(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(LastRow { logits }) = at.stage() else { return Vec::new() };
    let off = |index: &usize| {
        let row = logits.row(*index).iter().zip(theirs);
        row.map(|(&ours, theirs)| (f64::from(ours) - theirs).powi(2)).filter(|off| !off.is_nan()).sum::<f64>()
    };
    let others = 0..logits.rows() - 1;
    let Some(index) = others.min_by(|one, other| off(one).total_cmp(&off(other))) else { return Vec::new() };
    match index {
        0 => vec![ChangeValue::word("first")],
        _ if index + 2 == logits.rows() => vec![ChangeValue::word("one-before")],
        _ => vec![ChangeValue::Number(index as f64)],
    }
}

/// Estimates the temperature. The logarithms of probabilities are linear in the logits, with the slope
/// 1/temperature. Likely tokens have the largest weight.
fn read_temperature(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(Probabilities { logits, .. }) = at.stage() else { return Vec::new() };
    if theirs.iter().any(|&p| p < 0.0) {
        return Vec::new();
    }
    let mean = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        let pairs = logits.data().iter().zip(theirs).filter(|(_, p)| **p > 0.0);
        let sum: f64 = pairs.map(|(&logit, &p)| p * of(logit.into(), p.ln())).sum();
        sum / theirs.iter().filter(|p| **p > 0.0).sum::<f64>()
    };
    let (x, y) = (mean(&|logit, _| logit), mean(&|_, log| log));
    let pairs = logits.data().iter().zip(theirs).filter(|(_, p)| **p > 0.0);
    let weighted = pairs.map(|(&logit, &p)| (p.sqrt() * (p.ln() - y), p.sqrt() * (f64::from(logit) - x)));
    // A few tokens have nearly all the weight, so the scatter underestimates the uncertainty.
    let scaled = FactorEstimate::read(weighted).map(|scaled| scaled.chosen_within(1e-5));
    scaled.map_or(Vec::new(), |scaled| scaled.values(at, &TEMPERATURES))
}

fn unlike_probabilities(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Probabilities { logits, temperature } = at.stage()?;
    match word {
        "log" => Some(at.n.mapped(at.value, |p, _| p.ln(), 0.0)),
        "log10" => Some(at.n.mapped(at.value, |p, _| p.log10(), 0.0)),
        "logits" if *temperature == 1.0 => Some(logits.clone()),
        "logits" => Some(at.n.scale(logits, Multiplier::Element(1.0 / temperature))),
        _ => None,
    }
}
