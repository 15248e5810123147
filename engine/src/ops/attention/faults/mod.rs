//! Changes of attention scores and context: key heads, head order, score scale and soft cap.

pub(crate) mod key_rotation;
pub(crate) mod mask;
mod masked_scores;
pub mod merge;
pub(crate) mod softmax_sum;
mod visible_keys;

use crate::change::outer_operations::{made_by, soft_cap};
use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, rounded_to, snapped};
use crate::checkpoint::Point;
use crate::exact::Float;
use crate::numerics::Numerics;
use crate::ops::attention::AttentionScale;
use crate::ops::attention::exact::{AttentionContext, Scores};
use crate::ops::scaling::Multiplier;
use crate::tensor::Tensor;
use crate::weight::DType;

/// Taps at which query heads are combined with key or value heads.
const HEADS: &[Point] = &[Point::AttnScores, Point::AttnContext];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::AttnScale,
        at: &[Point::AttnScores],
        takes: "0.125",
        own: |at| {
            own_scale(at).map_or(ChangeValue::Nothing, |scale| ChangeValue::Number(scale.factor().into()))
        },
        compute: |at, value| with_scale(at, value.number()? as f32),
        read: read_scale,
        usual: Some(|at| scales(at).into_iter().map(ChangeValue::Number).collect()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry { kind: CauseKind::Softcap, keys: ATTN_CAP, at: &[Point::AttnScores], ..NO_SOFTCAP },
    CatalogueEntry { kind: CauseKind::Softcap, keys: ATTN_CAP, at: &[Point::AttnScores], ..SOFTCAP },
    CatalogueEntry {
        kind: CauseKind::Softcap,
        at: &[Point::AttnScores],
        takes: "before-scale|log2",
        compute: |at, value| capped_otherwise(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry { kind: CauseKind::Softcap, keys: LOGITS_CAP, at: &[Point::Logits], ..NO_SOFTCAP },
    CatalogueEntry { kind: CauseKind::Softcap, keys: LOGITS_CAP, at: &[Point::Logits], ..SOFTCAP },
    CatalogueEntry {
        kind: CauseKind::GqaMapping,
        at: HEADS,
        takes: "tile|first|0,1,0,1",
        compute: |at, value| reading(at, &key_heads(at, value.as_word()?)?),
        read: read_key_heads,
        usual: Some(|_| ["tile", "first"].map(ChangeValue::word).into()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::HeadOrder,
        at: HEADS,
        takes: "reversed|groups|transposed|heads-first|1,0,3,2",
        compute: |at, value| in_order(at, value.as_word()?),
        read: read_order,
        usual: Some(|_| ["reversed", "groups", "transposed", "heads-first"].map(ChangeValue::word).into()),
        ..CatalogueEntry::PLAIN
    },
];

const ATTN_CAP: Option<[&str; 2]> = Some(["attn_logit_softcapping", "attn_logit_softcapping"]);
const LOGITS_CAP: Option<[&str; 2]> = Some(["final_logit_softcapping", "final_logit_softcapping"]);

/// Name of the fault that the engine lacks the model's soft cap of scores or logits.
const NO_SOFTCAP: CatalogueEntry = CatalogueEntry {
    takes: "none",
    own: |at| uncapped(at).1.map_or(ChangeValue::word("none"), |cap| ChangeValue::Number(cap.into())),
    compute: |at, value| match (value.as_word()?, uncapped(at)) {
        ("none", (x, Some(_))) => Some(x),
        _ => None,
    },
    ..CatalogueEntry::PLAIN
};

const SOFTCAP: CatalogueEntry = CatalogueEntry {
    takes: "50",
    own: |at| uncapped(at).1.map_or(ChangeValue::word("none"), |cap| ChangeValue::Number(cap.into())),
    compute: |at, value| capped(at, value.number()?),
    read: read_cap,
    usual: Some(|_| CAPS[..3].iter().copied().map(ChangeValue::Number).collect()),
    ..CatalogueEntry::PLAIN
};

fn own_scale(at: &SiteContext) -> Option<AttentionScale> {
    at.stage::<Scores>().map(|scores| scores.scale)
}

/// Computes attention with another scale, applied to the same operand as in the model.
fn with_scale(at: &SiteContext, factor: f32) -> Option<Tensor> {
    let Scores { q, k, scale, .. } = at.stage()?;
    let scale = match scale {
        AttentionScale::Products(_) => AttentionScale::Products(factor),
        AttentionScale::Queries(_) => AttentionScale::Queries(factor),
        AttentionScale::RoundedQueries(_) => AttentionScale::RoundedQueries(factor),
    };
    Some(at.n.scores(q, k, scale))
}

/// Returns scales to try: for other head sizes, applied twice, omitted, or with a rounded factor.
fn scales(at: &SiteContext) -> Vec<f64> {
    let Some(Scores { q, scale, .. }) = at.stage() else { return Vec::new() };
    let (heads, head_dim) = (q.shape()[1] as f64, q.shape()[2] as f64);
    let own = f64::from(scale.factor());
    let mut all = vec![1.0, head_dim.recip(), head_dim.sqrt().recip(), (heads * head_dim).sqrt().recip()];
    if let Some(norm) = at.operations.norm(Point::AttnNorm, at.site.layer) {
        let hidden = norm.weight.len() as f64;
        all.extend([(hidden / heads).sqrt().recip(), hidden.sqrt().recip()]);
    }
    all.extend([
        own * own,
        own.recip(),
        own.sqrt(),
        own * 2.0,
        own / 2.0,
        own * std::f64::consts::SQRT_2,
        own / std::f64::consts::SQRT_2,
        Float::Bf16.round(own),
        Float::F16.round(own),
    ]);
    let mut distinct: Vec<f64> = Vec::new();
    let is_same = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-6;
    for scale in all.into_iter().map(|scale| f64::from(scale as f32)) {
        if !is_same(scale, own) && !distinct.iter().any(|&known| is_same(scale, known)) {
            distinct.push(scale);
        }
    }
    distinct
}

/// Estimates the ratio of the engine's scores to ours by least squares.
fn read_scale(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(scale) = own_scale(at) else { return Vec::new() };
    let (mut up, mut down) = (0.0, 0.0);
    for (&ours, &theirs) in at.value.data().iter().zip(theirs).filter(|(_, theirs)| theirs.is_finite()) {
        up += f64::from(ours) * theirs;
        down += f64::from(ours).powi(2);
    }
    let read = up / down * f64::from(scale.factor());
    if !read.is_finite() || read == 0.0 {
        return Vec::new();
    }
    let mut values = snapped(read, &scales(at), certainty(at));
    // In f32, a scale that differs in its sixth digit is a different scale.
    let digits: &[i32] = match (certainty(at) > 1e-5, values.is_empty()) {
        (true, true) => &[2, 3],
        (true, false) => &[],
        (false, true) => &[2, 3, 6, 8],
        (false, false) => &[8],
    };
    values.extend(digits.iter().map(|&digits| rounded_to(digits, read)));
    values.into_iter().map(ChangeValue::Number).collect()
}

/// Returns the relative uncertainty of a number that is estimated from values of the activation type.
fn certainty(at: &SiteContext) -> f64 {
    match at.n.activation_type() {
        DType::BF16 => 4e-3,
        DType::F16 => 5e-4,
        _ => 1e-5,
    }
}

/// Soft caps of real models.
const CAPS: [f64; 6] = [30.0, 50.0, 20.0, 15.0, 25.0, 100.0];

/// Returns the scores before the model's soft cap, and the cap.
fn uncapped(at: &SiteContext) -> (Tensor, Option<f32>) {
    soft_cap(at).map_or_else(|| (at.value.clone(), None), |(x, cap)| (x, Some(cap)))
}

/// Applies the model's soft cap at the wrong step: to products before their scale, or to scores times log2(e), as
/// kernels that compute powers of 2 may do.
fn capped_otherwise(at: &SiteContext, how: &str) -> Option<Tensor> {
    let (x, cap) = soft_cap(at)?;
    let node = made_by(&x)?;
    let Scores { q, k, scale, .. } = node.operation()?;
    let (inside, outside) = match how {
        "before-scale" => (1.0, scale.factor()),
        "log2" => (scale.factor() * std::f32::consts::LOG2_E, std::f32::consts::LN_2),
        _ => return None,
    };
    let scores = at.n.scores(q, k, AttentionScale::Products(inside));
    Some(at.n.scale(&at.n.soft_cap(&scores, cap), Multiplier::Number(outside)))
}

/// Computes `c · tanh(x / c)` in the three usual operations; returns `None` if the result differs from `x` by rounding
/// only.
fn capped(at: &SiteContext, cap: f64) -> Option<Tensor> {
    let (x, _) = uncapped(at);
    let largest = x.data().iter().fold(0.0f64, |largest, &x| largest.max(f64::from(x).abs()));
    let bends_by = (largest / cap).powi(2) / 3.0;
    if cap <= 0.0 || bends_by < certainty(at) / 2.0 {
        return None;
    }
    Some(at.n.soft_cap(&x, cap as f32))
}

/// Finds the cap `c` by bisection. Each value is weighted by the effect of the cap on it, about x³ / 3c².
fn read_cap(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let (x, _) = uncapped(at);
    let pairs = x.data().iter().map(|&x| f64::from(x)).zip(theirs.iter().copied());
    let pairs: Vec<(f64, f64)> = pairs.filter(|(_, y)| y.is_finite()).collect();
    let left = |cap: f64| pairs.iter().map(|(x, y)| x.powi(3) * (y - cap * (x / cap).tanh())).sum::<f64>();
    let (mut low, mut high) = LIKELY;
    // The values are not capped, or another change explains them.
    if !(left(low) > 0.0 && left(high) < 0.0) {
        return Vec::new();
    }
    for _ in 0..60 {
        let middle = f64::sqrt(low * high);
        if left(middle) > 0.0 { low = middle } else { high = middle }
    }
    let steps = (1..40).map(|step| 2.5 * f64::from(step));
    // Short types hide most of the cap's effect, so caps of real models are tried first.
    let is_short = certainty(at) > 1e-5;
    let mut values = snapped(low, &CAPS, if is_short { 3.0 } else { 0.1 });
    values.extend(snapped(low, &steps.collect::<Vec<_>>(), if is_short { 0.5 } else { 0.1 }));
    values.extend([2, 3].map(|digits| rounded_to(digits, low)));
    values.into_iter().map(ChangeValue::Number).collect()
}

/// Lowest and highest plausible cap.
const LIKELY: (f64, f64) = (0.1, 1e4);

/// Returns the number of query heads and of key or value heads.
fn heads(at: &SiteContext) -> Option<(usize, usize)> {
    match (at.stage::<Scores>(), at.stage::<AttentionContext>()) {
        (Some(Scores { q, k, .. }), _) => Some((q.shape()[1], k.shape()[1])),
        (_, Some(AttentionContext { weights, v })) => Some((weights.shape()[0], v.shape()[1])),
        _ => None,
    }
}

/// Returns the head counts. `None` if each query head has a key head of its own, or all query heads share one.
fn grouped(at: &SiteContext) -> Option<(usize, usize)> {
    heads(at).filter(|&(heads, key_heads)| key_heads > 1 && key_heads < heads)
}

/// Returns the key head that each query head reads. `None` if that is the model's own assignment.
fn key_heads(at: &SiteContext, how: &str) -> Option<Vec<usize>> {
    let (heads, key_heads) = grouped(at)?;
    let map: Vec<usize> = match how {
        "tile" => (0..heads).map(|head| head % key_heads).collect(),
        "first" => vec![0; heads],
        list => list.split(',').map(|head| head.parse().ok()).collect::<Option<_>>()?,
    };
    let fits = map.len() == heads && map.iter().all(|&head| head < key_heads);
    let is_own = map.iter().enumerate().all(|(head, &read)| read == head * key_heads / heads);
    (fits && !is_own).then_some(map)
}

/// Computes attention with the key or value head that `map` gives for each query head.
fn reading(at: &SiteContext, map: &[usize]) -> Option<Tensor> {
    let spread = |x: &Tensor| {
        let (heads, head_dim) = (x.shape()[1], x.shape()[2]);
        let shape = [x.rows(), map.len(), head_dim];
        at.n.gathered(&[x], &shape, |flat| {
            let (row, head) = (flat / head_dim / map.len(), flat / head_dim % map.len());
            (0, (row * heads + map[head]) * head_dim + flat % head_dim)
        })
    };
    match (at.stage::<Scores>(), at.stage::<AttentionContext>()) {
        (Some(Scores { q, k, scale, .. }), _) => Some(at.n.scores(q, &spread(k), *scale)),
        (_, Some(AttentionContext { weights, v })) => Some(at.n.context(weights, &spread(v))),
        _ => None,
    }
}

/// Returns, for each query head, the key head that explains the engine's values best.
fn read_key_heads(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some((heads, key_heads)) = grouped(at) else { return Vec::new() };
    let mut nearest = HeadSearch::new(at, theirs, heads);
    for key_head in 0..key_heads {
        let Some(made) = reading(at, &vec![key_head; heads]) else { continue };
        (0..heads).for_each(|head| nearest.look(head, key_head, (&made, head)));
    }
    nearest.chosen().map(|map| told(&map, key_heads_named(at, &map))).into_iter().collect()
}

/// Formats a head order: by its name if it has one, otherwise as a list of numbers.
fn told(map: &[usize], name: Option<&str>) -> ChangeValue {
    name.map_or_else(|| ChangeValue::Word(listed(map)), ChangeValue::word)
}

fn listed(map: &[usize]) -> String {
    map.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

fn key_heads_named(at: &SiteContext, map: &[usize]) -> Option<&'static str> {
    ["tile", "first"].into_iter().find(|word| key_heads(at, word).is_some_and(|known| known == map))
}

fn order_named(at: &SiteContext, map: &[usize]) -> Option<&'static str> {
    ["reversed", "groups"].into_iter().find(|word| order(at, word).is_some_and(|known| known == map))
}

/// Search that finds, for each head of the engine, our nearest head.
struct HeadSearch<'t> {
    theirs: &'t [f64],
    /// Indices of the values of each head, in scores `[H, T, S]` or in context `[T, H·D]`.
    places: Vec<Vec<usize>>,
    /// For each of the engine's heads: our nearest head and the error.
    found: Vec<(usize, f64)>,
}

/// Largest relative error between two heads that still match.
const NEAR: f64 = 0.1;

impl<'t> HeadSearch<'t> {
    fn new(at: &SiteContext, theirs: &'t [f64], heads: usize) -> Self {
        let (all, width) = (at.value.data().len(), at.value.row_len());
        let places = |head: usize| match at.stage::<Scores>() {
            Some(_) => (head * all / heads..(head + 1) * all / heads).collect(),
            None => (0..all).filter(|flat| flat % width / (width / heads) == head).collect(),
        };
        Self { theirs, places: (0..heads).map(places).collect(), found: vec![(0, f64::INFINITY); heads] }
    }

    /// Compares one of the engine's heads with one of our heads and keeps the nearest match so far.
    fn look(&mut self, head: usize, choice: usize, (made, of): (&Tensor, usize)) {
        let pairs = self.places[head].iter().map(|&there| self.theirs[there]).zip(&self.places[of]);
        let (mut up, mut down) = (0.0, 0.0);
        for (theirs, &here) in pairs.filter(|(theirs, _)| theirs.is_finite()) {
            up += (f64::from(made.data()[here]) - theirs).powi(2);
            down += theirs.powi(2);
        }
        let off = (up / down).sqrt();
        if off < self.found[head].1 {
            self.found[head] = (choice, off);
        }
    }

    /// Returns the chosen heads; `None` if a head has no match.
    fn chosen(self) -> Option<Vec<usize>> {
        self.found.into_iter().map(|(choice, off)| (off < NEAR).then_some(choice)).collect()
    }
}

/// Returns the head at each position; `None` if that is the model's order.
fn order(at: &SiteContext, how: &str) -> Option<Vec<usize>> {
    let (heads, key_heads) = heads(at)?;
    let order: Vec<usize> = match how {
        "reversed" => (0..heads).rev().collect(),
        // Transposes the head grid: [H / Hkv, Hkv] instead of [Hkv, H / Hkv].
        "groups" => {
            (0..heads).map(|head| head % key_heads * (heads / key_heads) + head / key_heads).collect()
        }
        list => list.split(',').map(|head| head.parse().ok()).collect::<Option<_>>()?,
    };
    let fits = order.len() == heads && (0..heads).all(|head| order.contains(&head));
    (fits && order.iter().enumerate().any(|(head, &other)| head != other)).then_some(order)
}

/// Reorders the heads of the queries, or of the merged context.
fn in_order(at: &SiteContext, how: &str) -> Option<Tensor> {
    let Scores { q, k, scale, .. } = match (at.stage::<Scores>(), at.stage::<AttentionContext>()) {
        (Some(scores), _) => scores,
        (_, Some(AttentionContext { weights, .. })) => {
            let (heads, tokens) = (weights.shape()[0], weights.shape()[1]);
            let from = laid_out(at, how, [tokens, heads, at.value.row_len() / heads])?;
            return Some(at.n.gathered(&[at.value], at.value.shape(), |flat| (0, from(flat))));
        }
        _ => return None,
    };
    let from = laid_out(at, how, [q.shape()[0], q.shape()[1], q.shape()[2]])?;
    Some(at.n.scores(&at.n.gathered(&[q], q.shape(), |flat| (0, from(flat))), k, *scale))
}

/// Returns the index that each value of `[T, H, D]` has in another layout.
fn laid_out(
    at: &SiteContext,
    how: &str,
    [tokens, heads, head_dim]: [usize; 3],
) -> Option<Box<dyn Fn(usize) -> usize>> {
    let width = heads * head_dim;
    match how {
        // The context is merged as [T, D, H], or the queries are read in that layout.
        "transposed" if heads > 1 => Some(Box::new(move |flat| {
            let (token, at) = (flat / width, flat % width);
            token * width + at % heads * head_dim + at / heads
        })),
        // Values in the layout [H, T, D] are read as [T, H, D].
        "heads-first" if heads > 1 && tokens > 1 => Some(Box::new(move |flat| {
            let (head, token) = (flat / head_dim / tokens, flat / head_dim % tokens);
            token * width + head * head_dim + flat % head_dim
        })),
        "transposed" | "heads-first" => None,
        _ => {
            let order = order(at, how)?;
            Some(Box::new(move |flat| {
                let (token, head) = (flat / width, flat / head_dim % heads);
                token * width + order[head] * head_dim + flat % head_dim
            }))
        }
    }
}

/// Returns, for each head of the engine, our nearest head.
fn read_order(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some((heads, _)) = heads(at) else { return Vec::new() };
    let mut nearest = HeadSearch::new(at, theirs, heads);
    for by in 0..heads {
        // Compares every query head with every key head: each step shifts the query heads by one.
        let turned: Vec<usize> = (0..heads).map(|head| (head + by) % heads).collect();
        match at.stage::<AttentionContext>() {
            Some(_) => (0..heads).for_each(|head| nearest.look(head, turned[head], (at.value, turned[head]))),
            None => {
                let made = in_order(at, &listed(&turned)).unwrap_or_else(|| at.value.clone());
                (0..heads).for_each(|head| nearest.look(head, turned[head], (&made, head)));
            }
        }
    }
    let map = nearest.chosen().filter(|map| order(at, &listed(map)).is_some());
    map.map(|map| told(&map, order_named(at, &map))).into_iter().collect()
}
