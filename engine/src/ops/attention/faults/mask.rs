//! Changes of softmax: which keys a query sees, the softmax axis, and the precision of the scores.

use std::collections::BTreeMap;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext};
use crate::checkpoint::Point;
use crate::exact::Float;
use crate::numerics::Numerics;
use crate::ops::attention::Mask;
use crate::ops::attention::exact::Softmax;
use crate::ops::attention::faults::masked_scores::{known_scores, seeing, softmax_of, softmax_of_seen};
use crate::ops::attention::faults::visible_keys::{self, KeyRule};
use crate::ops::rope::exact::Rotary;
use crate::tensor::Tensor;

const WEIGHTS: &[Point] = &[Point::AttnWeights];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::MaskWindow,
        is_local: false,
        names_tap: true,
        keys: Some(["sliding_window", "attention.sliding_window"]),
        at: WEIGHTS,
        takes: "512|none|chunks:512|padded:64|4+512|ring:512",
        own: |at| match at.stage::<Softmax>().map(|softmax| softmax.mask) {
            None => ChangeValue::Nothing,
            Some(Mask { window: None, .. }) => ChangeValue::word("none"),
            Some(Mask { window: Some(size), chunks: Some(_), .. }) => {
                ChangeValue::Word(format!("chunks:{size}"))
            }
            Some(Mask { window: Some(size), chunks: None, .. }) => ChangeValue::Number(size as f64),
        },
        // In models that mix sliding and full layers, changing a full layer is a wrong layer pattern, not a wrong
        // window size.
        compute: |at, value| match value {
            _ if own_window(at).is_none() && at.operations.slides() => None,
            ChangeValue::Number(window) if *window >= 1.0 => {
                masked(at, |mask| Mask { window: Some(*window as usize), chunks: None, ..mask })
            }
            ChangeValue::Word(word) if word == "none" => masked(at, |mask| Mask { window: None, ..mask }),
            ChangeValue::Word(word) => match word.strip_prefix("chunks:") {
                Some(size) => in_chunks(at, size.parse().ok()?),
                None => KeyRule::of_window(word)?.softmax(at),
            },
            _ => None,
        },
        read: |at, theirs| [read_window(at, theirs), visible_keys::read(at, theirs, true)].concat(),
        usual: Some(windows),
        sweep: |at| visible_keys::all(at, true),
    },
    CatalogueEntry {
        kind: CauseKind::LayerPattern,
        keys: Some(["layer_types", "attention.sliding_window_pattern"]),
        at: &[Point::QRope, Point::KRope, Point::AttnWeights],
        compute: |at, _| as_other_layer(at),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::MaskCausal,
        at: WEIGHTS,
        takes: "none|strict|one-more|from-start|added|shifted:-1|whole-blocks:16|without-latest:1|without:14-15",
        compute: |at, value| with_mask(at, value.as_word()?),
        read: |at, theirs| visible_keys::read(at, theirs, false),
        sweep: |at| visible_keys::all(at, false),
        usual: Some(|_| ["none", "strict", "one-more", "from-start", "added"].map(ChangeValue::word).into()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::SoftmaxAxis,
        at: WEIGHTS,
        takes: "queries|heads",
        compute: |at, value| along(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::SoftmaxPrecision,
        at: WEIGHTS,
        takes: "scores-bf16|scores-f16|bf16|f16",
        compute: |at, value| of_rounded(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
];

fn own_window(at: &SiteContext) -> Option<usize> {
    at.stage::<Softmax>().and_then(|softmax| softmax.mask.window)
}

/// Computes softmax with another mask.
fn masked(at: &SiteContext, change: impl Fn(Mask) -> Mask) -> Option<Tensor> {
    let Softmax { mask, .. } = at.stage()?;
    let mask = change(*mask);
    softmax_of(at, &known_scores(at)?, mask)
}

fn with_mask(at: &SiteContext, how: &str) -> Option<Tensor> {
    let Softmax { scores, mask, .. } = at.stage()?;
    let &[_, tokens, keys] = scores.shape() else { return None };
    let own = |token: usize| mask.visible(token, keys);
    match how {
        "none" => masked(at, |_| Mask::NONE),
        // A query that sees no earlier key still sees itself.
        "strict" => softmax_of_seen(at, |token, key| {
            let last = own(token).end - 1;
            own(token).contains(&key) && (key < last || own(token).len() == 1)
        }),
        "one-more" if tokens > 1 => {
            softmax_of_seen(at, |token, key| own(token).contains(&key) || key == own(token).end)
        }
        // A later pass uses the mask of the first pass.
        "from-start" if mask.position > 0 => masked(at, |mask| Mask { position: 0, ..mask }),
        "added" => {
            let sees = |flat: usize| own(flat / keys % tokens).contains(&(flat % keys));
            let added = (0..scores.data().len()).map(|flat| f32::from(sees(flat))).collect();
            let sum = at.n.add(&known_scores(at)?, &Tensor::new(scores.shape(), added));
            softmax_of(at, &sum, Mask::NONE)
        }
        _ => KeyRule::of_mask(how)?.softmax(at),
    }
}

/// Limits each query to the keys of its own chunk of `size` positions.
fn in_chunks(at: &SiteContext, size: usize) -> Option<Tensor> {
    let Softmax { mask, .. } = at.stage()?;
    let fits = (1..mask.position + at.value.shape().get(1)?).contains(&size);
    let first = |token: usize| (mask.position + token) / size * size;
    fits.then(|| softmax_of_seen(at, |token, key| (first(token)..=mask.position + token).contains(&key)))?
}

/// Computes softmax along another axis. Hidden keys get the lowest finite score, as with an additive mask.
fn along(at: &SiteContext, axis: &str) -> Option<Tensor> {
    let Softmax { mask, .. } = at.stage()?;
    let shape = at.value.shape();
    let &[heads, tokens, keys] = shape else { return None };
    let hidden = seeing(at, f32::MIN, |token, key| mask.visible(token, keys).contains(&key))?;
    let (stride, length) = match axis {
        "queries" if tokens > 1 => (keys, tokens),
        "heads" if heads > 1 => (tokens * keys, heads),
        _ => return None,
    };
    // Gathers one row along the softmax axis for each index of the other axes, in order.
    let there = |flat: usize| {
        let (row, at) = (flat / length, flat % length);
        row / stride * stride * length + row % stride + at * stride
    };
    let back = |flat: usize| {
        let (outer, at, inner) = (flat / stride / length, flat / stride % length, flat % stride);
        (outer * stride + inner) * length + at
    };
    let rows = [1, shape.iter().product::<usize>() / length, length];
    let weights = at.n.softmax(&at.n.gathered(&[&hidden], &rows, |flat| (0, there(flat))), Mask::NONE);
    Some(at.n.gathered(&[&weights], shape, |flat| (0, back(flat))))
}

/// Computes softmax of scores rounded to a smaller type. If `how` is only the name of a type, the weights are
/// rounded too.
fn of_rounded(at: &SiteContext, what: &str) -> Option<Tensor> {
    let Softmax { scores, mask, .. } = at.stage()?;
    let round: fn(f64, f64) -> f64 = match what.strip_prefix("scores-").unwrap_or(what) {
        "bf16" => |x, _| Float::Bf16.round(x),
        "f16" => |x, _| Float::F16.round(x),
        _ => return None,
    };
    let weights = softmax_of(at, &at.n.mapped(scores, round, 0.0), *mask)?;
    Some(if what.starts_with("scores-") { weights } else { at.n.mapped(&weights, round, 0.0) })
}

/// Returns the nearest layer of the other kind of attention: with a sliding window if this layer has none, and the
/// reverse.
fn other_layer(at: &SiteContext) -> Option<usize> {
    let (layer, slides) = (at.site.layer?, |layer: usize| at.operations.window(layer).is_some());
    let others = (0..at.operations.n_layers()).filter(|&other| slides(other) != slides(layer));
    others.min_by_key(|other| other.abs_diff(layer))
}

fn as_other_layer(at: &SiteContext) -> Option<Tensor> {
    let other = other_layer(at)?;
    if let Some(Rotary { x, positions, .. }) = at.stage() {
        // RoPE of another layer does not fit if the sizes of heads differ.
        let rope = at.operations.rope(other).filter(|rope| Some(&rope.width) <= x.shape().last())?;
        return Some(at.n.rotate(x, &at.n.rope_table(rope, positions.clone())));
    }
    masked(at, |mask| Mask { window: at.operations.window(other), ..mask })
}

/// Returns windows to try: no window, one larger, one smaller, twice the model's window, and chunks. If the model
/// has no window, tries small windows.
fn windows(at: &SiteContext) -> Vec<ChangeValue> {
    let number = |window: usize| ChangeValue::Number(window as f64);
    match own_window(at) {
        Some(own) => vec![
            ChangeValue::word("none"),
            number(own + 1),
            number(own - 1),
            number(own),
            number(2 * own),
            ChangeValue::Word(format!("chunks:{own}")),
        ],
        None => vec![number(4), number(8), ChangeValue::word("chunks:4")],
    }
}

/// Reads the window from the first key of each query whose weight is not 0.
fn read_window(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(Softmax { scores, mask, .. }) = at.stage() else { return Vec::new() };
    let &[heads, tokens, keys] = scores.shape() else { return Vec::new() };
    // The weights of one head may underflow to 0, so a key counts as seen if any head sees it.
    let sees =
        |token: usize, key: usize| (0..heads).any(|head| theirs[(head * tokens + token) * keys + key] > 0.0);
    let firsts = (0..tokens).filter_map(|token| Some((token, (0..keys).find(|&key| sees(token, key))?)));
    let (mut counts, mut chunk) = (BTreeMap::<usize, usize>::new(), None);
    for (token, first) in firsts.filter(|&(_, first)| first > 0) {
        *counts.entry((mask.position + token + 1).saturating_sub(first)).or_default() += 1;
        // Chunks begin at multiples of their size, so the first chunk start after 0 gives the size.
        chunk = chunk.or(Some(first));
    }
    let mut counts: Vec<(usize, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let windows = counts.into_iter().take(3).map(|(window, _)| ChangeValue::Number(window as f64));
    windows.chain(chunk.map(|size| ChangeValue::Word(format!("chunks:{size}")))).collect()
}
