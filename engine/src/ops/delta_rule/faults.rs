//! Faults of a gated delta rule: a state that is not kept between passes, wrong query and key heads, no decay, β = 1, queries
//! and keys exchanged, and unscaled outputs.

use std::sync::Arc;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::delta_rule::DeltaTokens;
use crate::ops::delta_rule::exact::{DeltaHistory, DeltaOutput, DeltaState};
use crate::tensor::Tensor;

const RESULTS: &[Point] = &[Point::RecurrentState, Point::RecurrentOut];
pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::StateKept,
        at: RESULTS,
        takes: "none",
        compute: |at, value| (value.as_word()? == "none").then(|| reset(at)).flatten(),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::DeltaRule,
        at: RESULTS,
        takes: "tiled-heads|undecayed|whole|swapped",
        compute: |at, value| changed(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::AttnScale,
        at: &[Point::RecurrentOut],
        takes: "1",
        own: |at| scale(at).map_or(ChangeValue::Nothing, ChangeValue::Number),
        compute: |at, value| scaled(at, value.number()?),
        usual: Some(|_| vec![ChangeValue::Number(1.0)]),
        ..CatalogueEntry::PLAIN
    },
];

/// Returns the recorded state and the tokens since then.
fn history<'a>(at: &'a SiteContext) -> Option<&'a Arc<DeltaHistory>> {
    let of_state = at.stage::<DeltaState>().map(|DeltaState(history)| history);
    of_state.or_else(|| at.stage::<DeltaOutput>().map(|DeltaOutput(history)| history))
}

/// Returns the result at the site: the state or the outputs.
fn result(at: &SiteContext, [state, out]: [Tensor; 2]) -> Tensor {
    if at.site.point == Point::RecurrentState { state } else { out.reshaped(at.value.shape()) }
}

/// Computes the pass with an initial state of zero.
fn reset(at: &SiteContext) -> Option<Tensor> {
    let history = history(at)?;
    let shape = history.initial.shape();
    let zeros = Tensor::new(shape, vec![0.0; shape.iter().product()]);
    Some(result(at, at.n.delta_rule(history.latest(), &zeros)))
}

/// Computes all passes since the last recorded state, with changed inputs.
fn changed(at: &SiteContext, word: &str) -> Option<Tensor> {
    let history = history(at)?;
    let mut state = history.initial.clone();
    let mut made = None;
    for pass in &history.passes {
        let results = at.n.delta_rule(&with(at, pass, word)?, &state);
        state = results[0].clone();
        made = Some(results);
    }
    Some(result(at, made?))
}

fn with(at: &SiteContext, tokens: &DeltaTokens, word: &str) -> Option<DeltaTokens> {
    let own = tokens.clone();
    let filled = |x: &Tensor, value: f32| Tensor::new(x.shape(), vec![value; x.data().len()]);
    match word {
        "undecayed" => Some(DeltaTokens { decay: filled(&own.decay, 0.0), ..own }),
        "whole" => Some(DeltaTokens { beta: filled(&own.beta, 1.0), ..own }),
        "swapped" => Some(DeltaTokens { q: own.k, k: own.q, ..own }),
        // Head h reads query and key head h % Hk.
        "tiled-heads" => {
            let (heads, [width, _], of_keys) = (own.heads(), own.widths(), own.k.shape()[1]);
            let from = |flat: usize| {
                let (token, head) = (flat / width / heads, flat / width % heads);
                (0, (token * of_keys + head % of_keys) * width + flat % width)
            };
            let [q, k] = [&own.q, &own.k].map(|x| at.n.gathered(&[x], &[own.len(), heads, width], from));
            Some(DeltaTokens { q, k, ..own })
        }
        _ => None,
    }
}

/// Returns the scale of the outputs, 1 / √Dk.
fn scale(at: &SiteContext) -> Option<f64> {
    let [width, _] = history(at)?.latest().widths();
    Some(1.0 / (width as f64).sqrt())
}

fn scaled(at: &SiteContext, scale_to: f64) -> Option<Tensor> {
    let by = scale_to / scale(at)?;
    Some(at.n.mapped(at.value, |value, by| value * by, by))
}
