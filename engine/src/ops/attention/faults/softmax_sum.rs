//! Changes of softmax's denominator: additional keys with a score of 0, such as zero rows of a static cache, or a sink.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, rounded_to};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::attention::Mask;
use crate::ops::attention::exact::Softmax;
use crate::ops::attention::faults::masked_scores::seeing;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::SoftmaxSum,
    at: &[Point::AttnWeights],
    takes: "zeros:1|static:64|multiple:32|sink:0.5",
    compute: |at, value| with_more_keys(at, value.as_word()?),
    read: |at, theirs| read_sum(at, theirs).unwrap_or_default(),
    usual: |_| vec![ChangeValue::word("zeros:1")],
    sweep: |at| [counts(), sizes(at)].concat(),
    ..CatalogueEntry::PLAIN
}];

/// Maximum number of additional keys.
const MOST_KEYS: usize = 1 << 13;

/// Returns the number of additional keys and their score.
fn additional(at: &SiteContext, how: &str) -> Option<(usize, f32)> {
    let &[_, _, keys] = at.value.shape() else { return None };
    let (name, number) = how.split_once(':')?;
    let size = || number.parse::<usize>().ok().filter(|&size| size > 0);
    let (more, score) = match name {
        "zeros" => (size()?, 0.0),
        // A cache of a fixed number of rows, whose unused rows are zero and are not masked.
        "static" => (size()?.checked_sub(keys)?, 0.0),
        // The same, of a cache that grows in steps.
        "multiple" => (keys.next_multiple_of(size()?) - keys, 0.0),
        "sink" => (1, number.parse().ok()?),
        _ => return None,
    };
    (1..=MOST_KEYS).contains(&more).then_some((more, score))
}

/// Computes softmax with additional keys whose weights are dropped.
fn with_more_keys(at: &SiteContext, how: &str) -> Option<Tensor> {
    let Softmax { mask, .. } = at.stage()?;
    let &[heads, tokens, keys] = at.value.shape() else { return None };
    let (more, score) = additional(at, how)?;
    let seen = seeing(at, f32::NEG_INFINITY, |token, key| mask.visible(token, keys).contains(&key))?;
    let (nothing, width) = (Tensor::new(&[1], vec![score]), keys + more);
    let wider = at.n.gathered(&[&seen, &nothing], &[heads, tokens, width], |flat| match flat % width {
        key if key < keys => (0, flat / width * keys + key),
        _ => (1, 0),
    });
    let weights = at.n.softmax(&wider, Mask::NONE);
    Some(at.n.gathered(&[&weights], at.value.shape(), |flat| (0, flat / keys * width + flat % keys)))
}

/// Reads the additional summand from the sums of weights: a row sums to `E / (E + n)`, where `E` is the sum of the
/// exponentials of its scores.
fn read_sum(at: &SiteContext, theirs: &[f64]) -> Option<Vec<ChangeValue>> {
    let Softmax { scores, mask } = at.stage()?;
    let &[_, tokens, keys] = scores.shape() else { return None };
    let mut found: Vec<f64> = Vec::new();
    for (row, weights) in theirs.chunks(keys).enumerate() {
        let sum: f64 = weights.iter().filter(|weight| weight.is_finite()).sum();
        let visible = mask.visible(row % tokens, keys);
        let own = &scores.data()[row * keys..][visible];
        let exponentials: f64 = own.iter().map(|&score| f64::from(score).exp()).sum();
        found.push(exponentials * (1.0 - sum) / sum);
    }
    found.sort_by(f64::total_cmp);
    let middle = found.get(found.len() / 2).copied().filter(|middle| middle.is_finite() && *middle > 1e-6)?;
    let (low, high) = (found[found.len() / 4], found[found.len() * 3 / 4]);
    // Rows with other sums have no common summand.
    if high - low > 0.1 * middle {
        return None;
    }
    let mut values = Vec::new();
    let whole = middle.round();
    if whole >= 1.0 && (middle / whole - 1.0).abs() < 0.02 {
        let more = whole as usize;
        values.push(ChangeValue::Word(format!("zeros:{more}")));
        values.push(ChangeValue::Word(format!("static:{}", keys + more)));
        values.extend(sizes(at).into_iter().filter(|value| {
            value.as_word().and_then(|word| additional(at, word)).is_some_and(|(other, _)| other == more)
        }));
    }
    let sinks = [1, 2, 3, 5].map(|digits| rounded_to(digits, middle.ln()));
    values.extend(sinks.map(|sink| ChangeValue::Word(format!("sink:{sink}"))));
    values.dedup();
    Some(values)
}

fn counts() -> Vec<ChangeValue> {
    (2..=8).map(|more| ChangeValue::Word(format!("zeros:{more}"))).collect()
}

/// Returns usual sizes of static caches, and steps by which a cache grows.
fn sizes(at: &SiteContext) -> Vec<ChangeValue> {
    let word = |name: &str, size: usize| ChangeValue::Word(format!("{name}:{size}"));
    let is_new = |value: &ChangeValue| value.as_word().and_then(|word| additional(at, word)).is_some();
    let fixed = (4..=12).map(|power| word("static", 1 << power));
    let steps = (2..=8).map(|power| word("multiple", 1 << power));
    fixed.chain(steps).filter(is_new).collect()
}
