//! Faults in the denominator of softmax: additional keys with a score of 0, such as zero rows of a static cache, or
//! a sink.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, FactorEstimate, SiteContext, rounded_to};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::attention::Mask;
use crate::ops::attention::exact::Softmax;
use crate::ops::attention::faults::masked_scores::seeing;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::SoftmaxSum,
    at: &[Point::AttnWeights],
    takes: "none|zeros:1|static:64|multiple:32|sink:0.5|sink:0.5,none,-1,2",
    compute: |at, value| match value.as_word()? {
        "none" => without_sinks(at),
        how => with_more_keys(at, how),
    },
    read: |at, theirs| {
        let [sum, sinks] = [read_sum(at, theirs), read_sinks(at, theirs)].map(Option::unwrap_or_default);
        [sum, sinks].concat()
    },
    usual: Some(|at| {
        let has_sinks = at.stage::<Softmax>().is_some_and(|own| own.sinks.is_some());
        vec![ChangeValue::word(if has_sinks { "none" } else { "zeros:1" })]
    }),
    sweep: |at| [counts(), sizes(at)].concat(),
    ..CatalogueEntry::PLAIN
}];

/// Maximum number of additional keys.
const MOST_KEYS: usize = 1 << 13;

/// Minimum number of queries needed to estimate the sink of each head.
const LEAST_QUERIES: usize = 3;

/// Returns the number of additional keys and their score in each head.
fn additional(at: &SiteContext, how: &str) -> Option<(usize, Vec<f32>)> {
    let &[heads, _, keys] = at.value.shape() else { return None };
    let (name, number) = how.split_once(':')?;
    let size = || number.parse::<usize>().ok().filter(|&size| size > 0);
    let zeros = |more| Some((more, vec![0.0; heads]));
    let (more, scores) = match name {
        "zeros" => zeros(size()?),
        // A cache of a fixed number of rows, whose unused rows are zero and are not masked.
        "static" => zeros(size()?.checked_sub(keys)?),
        // The same, of a cache that grows in steps.
        "multiple" => zeros(keys.next_multiple_of(size()?) - keys),
        "sink" => Some((1, sinks(number, heads)?)),
        _ => None,
    }?;
    (1..=MOST_KEYS).contains(&more).then_some((more, scores))
}

/// Parses the sink of each head: one number, or one or `none` for each head.
fn sinks(typed: &str, heads: usize) -> Option<Vec<f32>> {
    let one = |word: &str| match word.trim() {
        "none" => Some(f32::NEG_INFINITY),
        number => number.parse().ok().filter(|number: &f32| number.is_finite()),
    };
    let each: Vec<f32> = typed.split(',').map(one).collect::<Option<_>>()?;
    match each.as_slice() {
        [one] if one.is_finite() => Some(vec![*one; heads]),
        each => (each.len() == heads && each.iter().any(|one| one.is_finite())).then(|| each.to_vec()),
    }
}

/// Computes softmax without the model's own sinks.
fn without_sinks(at: &SiteContext) -> Option<Tensor> {
    let Softmax { scores, mask, sinks } = at.stage()?;
    sinks.as_ref().map(|_| at.n.softmax(scores, *mask))
}

/// Computes softmax with additional keys whose weights are dropped, in place of the model's own sinks.
fn with_more_keys(at: &SiteContext, how: &str) -> Option<Tensor> {
    let Softmax { mask, .. } = at.stage()?;
    let &[heads, tokens, keys] = at.value.shape() else { return None };
    let (more, scores) = additional(at, how)?;
    let seen = seeing(at, f32::NEG_INFINITY, |token, key| mask.visible(token, keys).contains(&key))?;
    let (sinks, width) = (Tensor::new(&[heads], scores), keys + more);
    let wider = at.n.gathered(&[&seen, &sinks], &[heads, tokens, width], |flat| match flat % width {
        key if key < keys => (0, flat / width * keys + key),
        _ => (1, flat / width / tokens),
    });
    let weights = at.n.softmax(&wider, Mask::NONE);
    Some(at.n.gathered(&[&weights], at.value.shape(), |flat| (0, flat / keys * width + flat % keys)))
}

/// Estimates the number `n` that the engine adds to softmax's denominator, from the sums of weights: a row sums to
/// `E / (E + n)`, where `E` is the sum of the exponentials of its scores.
fn read_sum(at: &SiteContext, theirs: &[f64]) -> Option<Vec<ChangeValue>> {
    let Softmax { scores, mask, .. } = at.stage()?;
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

/// Estimates the sink of each head. A row sums to `E / (E + n)`, where `E` is the sum of the exponentials of its
/// scores, so `n` is the slope of `1 - sum` over `sum / E`.
fn read_sinks(at: &SiteContext, theirs: &[f64]) -> Option<Vec<ChangeValue>> {
    let Softmax { scores, mask, .. } = at.stage()?;
    let &[heads, tokens, keys] = scores.shape() else { return None };
    if heads < 2 || tokens < LEAST_QUERIES {
        return None;
    }
    let sink = |head: usize| {
        let pairs = (0..tokens).map(|token| {
            let row = (head * tokens + token) * keys;
            let sum: f64 = theirs[row..][..keys].iter().filter(|weight| weight.is_finite()).sum();
            let own = &scores.data()[row..][mask.visible(token, keys)];
            let exponentials: f64 = own.iter().map(|&score| f64::from(score).exp()).sum();
            (sum / exponentials, 1.0 - sum)
        });
        FactorEstimate::read(pairs)?.plain_logarithm()
    };
    let sinks: Vec<f64> = (0..heads).map(sink).collect::<Option<_>>()?;
    let is_of_heads = sinks.iter().any(|sink| *sink != sinks[0]) && sinks.iter().any(|sink| sink.is_finite());
    let word = |sink: &f64| if sink.is_finite() { sink.to_string() } else { "none".to_owned() };
    let words: Vec<String> = sinks.iter().map(word).collect();
    Some(is_of_heads.then(|| ChangeValue::Word(format!("sink:{}", words.join(",")))).into_iter().collect())
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
