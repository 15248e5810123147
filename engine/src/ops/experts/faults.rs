//! Changes of mixtures of experts: number of chosen experts, routing weights, and expert matrices.

pub(crate) mod mixture;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, distance};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::experts::exact::{BiasedWeights, ExpertChoice, ExpertProducts, ExpertScores, ExpertWeights};
use crate::ops::experts::{ExpertGroups, ExpertOrder, ExpertRouting, ScoreFunction, by_expert, row_of_each};
use crate::tensor::Tensor;
use crate::weight::Matrix;

const WEIGHTS: &[Point] = &[Point::ExpertWeights];
const PRODUCTS: &[Point] = &[Point::ExpertGate, Point::ExpertUp, Point::ExpertOut];
const ROUTER: &[Point] = &[Point::RouterLogits];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::ExpertWeights,
        keys: Some(["norm_topk_prob", "expert_weights_norm"]),
        at: WEIGHTS,
        takes: "all|chosen|equal|logits|softmax|sigmoid|biased|unscaled",
        own: |at| {
            routing(at).map_or(ChangeValue::Nothing, |own| {
                ChangeValue::word(if own.is_normalised { "chosen" } else { "all" })
            })
        },
        compute: |at, value| weighed(at, value.as_word()?),
        usual: Some(|_| {
            let words = ["all", "chosen", "equal", "logits", "softmax", "sigmoid", "biased", "unscaled"];
            words.map(ChangeValue::word).into()
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::ExpertScores,
        keys: Some(["scoring_func", "expert_gating_func"]),
        at: &[Point::ExpertScores],
        takes: "softmax|sigmoid|unbiased|subtracted",
        compute: |at, value| scored(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::ExpertGroups,
        keys: Some(["n_group", "expert_group_count"]),
        at: &[Point::Experts],
        takes: "none|largest|sum",
        compute: |at, value| grouped(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::ExpertCount,
        keys: Some(["num_experts_per_tok", "expert_used_count"]),
        at: WEIGHTS,
        takes: "1",
        own: |at| routing(at).map_or(ChangeValue::Nothing, |own| ChangeValue::Number(own.used as f64)),
        compute: |at, value| with_fewer(at, value.number()?),
        usual: Some(|at| {
            let used = routing(at).map_or(0, |own| own.used);
            (1..used).rev().take(2).map(|fewer| ChangeValue::Number(fewer as f64)).collect()
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::GateUpSwap,
        at: &[Point::ExpertGate, Point::ExpertUp],
        takes: "weights",
        compute: |at, value| {
            let other = if at.site.point == Point::ExpertGate { Point::ExpertUp } else { Point::ExpertGate };
            let w = &at.operations.stage::<ExpertProducts>(other, at.site.layer)?.w;
            (value.as_word() == Some("weights")).then(|| with(at, w))?
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::ExpertOrder,
        at: PRODUCTS,
        takes: "next|previous|reversed|first-half|1,0,2,3",
        compute: |at, value| {
            let w = &at.stage::<ExpertProducts>()?.w;
            let order = match value.as_word()? {
                "first-half" => first_half(w.len())?,
                word => order(word, w.len())?,
            };
            with(at, &order.into_iter().map(|expert| w[expert].clone()).collect::<Vec<_>>())
        },
        read: read_order,
        usual: Some(|_| ["next", "previous", "reversed", "first-half"].map(ChangeValue::word).into()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::ExpertOrder,
        at: ROUTER,
        takes: "next|previous|reversed|1,0,2,3",
        compute: |at, value| {
            let experts = at.value.row_len();
            let order = order(value.as_word()?, experts)?;
            let from = |flat: usize| (0, flat / experts * experts + order[flat % experts]);
            Some(at.n.gathered(&[at.value], at.value.shape(), from))
        },
        usual: Some(|_| ["next", "previous", "reversed"].map(ChangeValue::word).into()),
        ..CatalogueEntry::PLAIN
    },
];

fn routing<'a>(at: &'a SiteContext) -> Option<&'a ExpertRouting> {
    at.stage::<ExpertWeights>().map(|stage| &stage.routing)
}

fn weighed(at: &SiteContext, word: &str) -> Option<Tensor> {
    let ExpertWeights { logits, chosen, routing } = at.stage()?;
    let by = |logits: &Tensor, routing: ExpertRouting| Some(at.n.expert_weights(logits, chosen, &routing));
    let divided = |is_normalised| {
        let is_of_chosen = routing.is_of_chosen && (is_normalised || routing.chooses_by_logits());
        ExpertRouting { is_normalised, is_of_chosen, ..routing.clone() }
    };
    let (experts, used) = (logits.row_len(), chosen.row_len());
    let of_chosen = |all: &Tensor| {
        let place = |flat: usize| (0, flat / used * experts + chosen.data()[flat] as usize);
        at.n.gathered(&[all], at.value.shape(), place)
    };
    match word {
        "all" => by(logits, divided(false)),
        "chosen" => by(logits, divided(true)),
        "equal" => by(&logits.clone().map(|_| 0.0), divided(true)),
        // The router's logits without softmax.
        "logits" => Some(of_chosen(logits)),
        "unscaled" if routing.scale != 1.0 || !routing.scales.is_empty() => {
            by(logits, ExpertRouting { scale: 1.0, scales: Vec::new(), ..routing.clone() })
        }
        "softmax" | "sigmoid" => {
            let function = score_function(word)?;
            (function != routing.function)
                .then(|| by(logits, ExpertRouting { function, ..routing.clone() }))?
        }
        // The scores that the choice compares, with the correction bias.
        "biased" if !routing.bias.is_empty() => {
            let scores = of_chosen(&at.n.expert_scores(logits, routing));
            let biased = BiasedWeights { scores: scores.clone(), routing: routing.clone() };
            Some(at.n.by(biased.weights(), biased))
        }
        _ => None,
    }
}

/// Returns the score function with this name.
fn score_function(word: &str) -> Option<ScoreFunction> {
    match word {
        "softmax" => Some(ScoreFunction::Softmax),
        "sigmoid" => Some(ScoreFunction::Sigmoid),
        _ => None,
    }
}

/// Computes the scores by which experts are chosen with a known mistake.
fn scored(at: &SiteContext, word: &str) -> Option<Tensor> {
    let ExpertScores { logits, routing } = at.stage()?;
    let by = |routing: ExpertRouting| Some(at.n.expert_scores(logits, &routing));
    match word {
        "unbiased" if !routing.bias.is_empty() => by(ExpertRouting { bias: Vec::new(), ..routing.clone() }),
        "subtracted" if !routing.bias.is_empty() => {
            by(ExpertRouting { bias: routing.bias.iter().map(|bias| -bias).collect(), ..routing.clone() })
        }
        _ => {
            let function = score_function(word)?;
            (function != routing.function).then(|| by(ExpertRouting { function, ..routing.clone() }))?
        }
    }
}

/// Chooses experts from wrong groups.
fn grouped(at: &SiteContext, word: &str) -> Option<Tensor> {
    let ExpertChoice { scores, routing } = at.stage()?;
    let groups = routing.groups?;
    let groups = match word {
        "none" => None,
        "largest" if groups.summed != 1 => Some(ExpertGroups { summed: 1, ..groups }),
        "sum" => Some(ExpertGroups { summed: scores.row_len() / groups.count, ..groups }),
        _ => return None,
    };
    Some(at.n.choose(scores, &ExpertRouting { groups, ..routing.clone() }))
}

/// Gives weight 0 to all chosen experts except the likeliest, as if each token chose fewer experts.
fn with_fewer(at: &SiteContext, count: f64) -> Option<Tensor> {
    let ExpertWeights { logits, chosen, routing } = at.stage()?;
    let (used, is_whole) = (count as usize, count.fract() == 0.0);
    if !is_whole || !(1..routing.used).contains(&used) || !routing.is_normalised {
        return None;
    }
    let (experts, shape) = (logits.row_len(), logits.shape().to_vec());
    let mut kept = logits.data().to_vec();
    for (token, row) in kept.chunks_mut(experts).enumerate() {
        let chosen = chosen.row(token);
        let of_chosen: Vec<f32> = chosen.iter().map(|&expert| row[expert as usize]).collect();
        for slot in ExpertOrder::Scores.of(&of_chosen).into_iter().skip(used) {
            row[chosen[slot] as usize] = f32::NEG_INFINITY;
        }
    }
    Some(at.n.expert_weights(&Tensor::new(&shape, kept), chosen, routing))
}

/// Computes the products with other expert matrices; the number of experts stays the same.
fn with(at: &SiteContext, w: &[Matrix]) -> Option<Tensor> {
    let ExpertProducts { x, w: own, chosen } = at.stage()?;
    let fits = w.len() == own.len() && w[0].rows == own[0].rows && w[0].cols == own[0].cols;
    fits.then(|| at.n.routed(x, w, chosen))
}

/// Returns, for each expert, the expert that replaces it.
fn order(word: &str, experts: usize) -> Option<Vec<usize>> {
    let all = 0..experts;
    match word {
        "next" => Some(all.map(|expert| (expert + 1) % experts).collect()),
        "previous" => Some(all.map(|expert| (expert + experts - 1) % experts).collect()),
        "reversed" => Some(all.rev().collect()),
        listed => {
            let order: Vec<usize> =
                listed.split(',').map(|one| one.trim().parse().ok()).collect::<Option<_>>()?;
            (order.len() == experts && order.iter().all(|&expert| expert < experts)).then_some(order)
        }
    }
}

/// Returns the order of experts if two devices share them and the second device omits its offset.
fn first_half(experts: usize) -> Option<Vec<usize>> {
    let half = (experts > 2 && experts.is_multiple_of(2)).then_some(experts / 2)?;
    Some((0..experts).map(|expert| expert % half).collect())
}

/// Finds, for each chosen expert, the expert whose matrix gives its first outputs. Experts that no token chose keep
/// their own matrix.
fn read_order(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    const OUTPUTS: usize = 16;
    let Some(ExpertProducts { x, w, chosen }) = at.stage() else { return Vec::new() };
    let (rows, few) = (w[0].rows, OUTPUTS.min(w[0].rows));
    let each = row_of_each(x, chosen.row_len());
    let mut order: Vec<usize> = (0..w.len()).collect();
    for (expert, entries) in by_expert(chosen) {
        let entry = entries[0];
        let row = x.data()[each(entry) * w[0].cols..][..w[0].cols].to_vec();
        let row = Tensor::new(&[1, w[0].cols], row);
        let wanted = &theirs[entry * rows..][..few];
        let off = |other: &usize| distance(&at.n.linear(&row, &w[*other].rows_from(0, few)), wanted);
        let nearest = (0..w.len()).min_by(|a, b| off(a).total_cmp(&off(b)));
        order[expert] = nearest.filter(|nearest| off(nearest) < 0.1).unwrap_or(expert);
    }
    let told: Vec<String> = order.iter().map(usize::to_string).collect();
    let is_named = order.is_sorted() || first_half(w.len()).is_some_and(|half| order == half);
    if is_named { Vec::new() } else { vec![ChangeValue::Word(told.join(","))] }
}
