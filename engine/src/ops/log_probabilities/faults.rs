//! Changes of log-probabilities: the logarithm, the sum of the softmax, the row and the token.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, rounded_to, snapped};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::log_probabilities::Picks;
use crate::ops::log_probabilities::exact::LogProbabilities;
use crate::ops::logits::faults::TEMPERATURES;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::Probs,
        at: &[Point::TokenLogprobs, Point::TopLogprobs],
        takes: "0.7",
        names_tap: false,
        own: |at| {
            at.stage::<LogProbabilities>()
                .map_or(ChangeValue::Nothing, |op| ChangeValue::Number(op.temperature.into()))
        },
        compute: |at, value| {
            let temperature = value.number().filter(|&temperature| temperature > 0.0)?;
            let op = at.stage::<LogProbabilities>()?;
            Some(at.n.log_probabilities(&op.logits, &op.picks, temperature as f32))
        },
        read: read_temperature,
        usual: Some(|_| TEMPERATURES.map(ChangeValue::Number).into()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::Logprobs,
        at: &[Point::TokenLogprobs, Point::TopLogprobs],
        takes: "log10|log2|probabilities|late|early",
        compute: |at, value| otherwise(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::Logprobs,
        at: &[Point::TokenLogprobs],
        takes: "own-token|next|previous",
        compute: |at, value| of_other_tokens(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::Logprobs,
        at: &[Point::TopLogprobs],
        takes: "of-named",
        compute: |at, value| {
            let op = at.stage::<LogProbabilities>().filter(|_| value.as_word() == Some("of-named"))?;
            made(at, op, Picks { is_closed: true, ..op.picks.clone() })
        },
        ..CatalogueEntry::PLAIN
    },
];

fn made(at: &SiteContext, op: &LogProbabilities, picks: Picks) -> Option<Tensor> {
    Some(at.n.log_probabilities(&op.logits, &picks, op.temperature))
}

/// Computes another function of the probability, or the token's log-probability from the next row of logits (late)
/// or the previous one (early).
fn otherwise(at: &SiteContext, word: &str) -> Option<Tensor> {
    match word {
        "log10" => return Some(at.n.mapped(at.value, |y, _| y / std::f64::consts::LN_10, 0.0)),
        "log2" => return Some(at.n.mapped(at.value, |y, _| y / std::f64::consts::LN_2, 0.0)),
        "probabilities" => return Some(at.n.mapped(at.value, |y, _| y.exp(), 0.0)),
        _ => {}
    }
    let op = at.stage::<LogProbabilities>()?;
    let rows = op.picks.rows.len();
    let by = match word {
        "late" => 1,
        "early" => rows - 1,
        _ => return None,
    };
    made(at, op, Picks { rows: (0..rows).map(|row| (row + by) % rows).collect(), ..op.picks.clone() })
}

/// Computes the log-probabilities of other tokens: of the token that the row itself reads, or of the tokens of a
/// neighbouring row, as in a list that is shifted by one.
fn of_other_tokens(at: &SiteContext, word: &str) -> Option<Tensor> {
    let op = at.stage::<LogProbabilities>()?;
    let Picks { ids, rows, before, .. } = &op.picks;
    let moved = |by: usize| {
        // The last row has no following token, so it is not shifted.
        let among = rows.len() - 1;
        let from = |row: usize| if row < among { (row + by) % among } else { row };
        let ids = (0..rows.len()).map(|row| ids[from(row)]).collect();
        Picks { ids, rows: (0..rows.len()).map(from).collect(), ..op.picks.clone() }
    };
    match word {
        _ if rows.len() < 3 => None,
        "own-token" => {
            let ids = std::iter::once(*before).chain(ids[..ids.len() - 1].iter().copied()).collect();
            made(at, op, Picks { ids, ..op.picks.clone() })
        }
        "next" => made(at, op, moved(1)),
        "previous" => made(at, op, moved(rows.len() - 2)),
        _ => None,
    }
}

/// Finds the temperature nearest to the dump's values by search. With one token per row, a linear fit is not
/// possible.
fn read_temperature(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(op) = at.stage::<LogProbabilities>() else { return Vec::new() };
    // With one or two values, some temperature always fits.
    if theirs.iter().filter(|theirs| theirs.is_finite()).count() < 3 {
        return Vec::new();
    }
    let off = |log: f64| {
        let made = at.n.numerics().log_probabilities(&op.logits, &op.picks, log.exp() as f32);
        let pairs = made.data().iter().zip(theirs).filter(|(_, theirs)| theirs.is_finite());
        pairs.map(|(&ours, theirs)| (f64::from(ours) - theirs).powi(2)).sum::<f64>()
    };
    // Coarse search from e⁻³ to e³, then refinement: each step shrinks the interval to two thirds.
    let coarse = (-15..=15).map(|step| f64::from(step) * 0.2);
    let Some(near) = coarse.min_by(|a, b| off(*a).total_cmp(&off(*b))) else { return Vec::new() };
    let (mut low, mut high) = (near - 0.2, near + 0.2);
    for _ in 0..40 {
        let (one, other) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if off(one) < off(other) { high = other } else { low = one }
    }
    let found = (low + high).exp().sqrt();
    let known = snapped(found, &TEMPERATURES, 1e-3).into_iter();
    known.chain((1..=5).map(|digits| rounded_to(digits, found))).map(ChangeValue::Number).collect()
}
