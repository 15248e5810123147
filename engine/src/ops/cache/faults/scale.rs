//! Faults in the scales of a quantised cache: keys or values are divided by a scale when stored, but not multiplied
//! by it when read.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, FactorEstimate, SiteContext, rounded_to};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::scaling::Multiplier;
use crate::quant::{CACHES, cache_codes, quantised_rows};
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] =
    &[CatalogueEntry { at: &[Point::KCache], ..SCALED }, CatalogueEntry { at: &[Point::VCache], ..SCALED }];

const SCALED: CatalogueEntry = CatalogueEntry {
    kind: CauseKind::CacheScale,
    takes: "20|1/0.05|20,25|20;25;30|codes",
    own: |_| ChangeValue::Number(1.0),
    compute: |at, value| match value {
        ChangeValue::Word(word) if word == CODES => codes(at),
        _ => scaled(at, &factors(at, value)?),
    },
    read: read_factors,
    usual: Some(|at| match CACHES.contains(&at.n.cache_type()) {
        true => vec![ChangeValue::Number(2.0), ChangeValue::word(CODES)],
        false => vec![ChangeValue::Number(2.0)],
    }),
    ..CatalogueEntry::PLAIN
};

/// Value of `--suppose` for a cache of quantised blocks whose codes are read as the keys or values: the blocks'
/// scales are not applied.
const CODES: &str = "codes";

/// Returns the codes of the new rows of a cache of blocks; `None` for another cache.
fn codes(at: &SiteContext) -> Option<Tensor> {
    let (first, head_dim) = (first_new(at), *at.value.shape().get(2)?);
    let cache = at.n.cache_type();
    let rows = CACHES.contains(&cache).then(|| quantised_rows(cache, &at.value.data()[first..], head_dim))?;
    let codes: Option<Vec<Vec<i8>>> = rows.iter().map(|row| cache_codes(cache, row)).collect();
    let codes: Vec<f32> = codes?.concat().into_iter().map(f32::from).collect();
    let codes = Tensor::new(&[codes.len()], codes);
    Some(at.n.gathered(&[at.value, &codes], at.value.shape(), |flat| match flat.checked_sub(first) {
        Some(new) => (1, new),
        None => (0, flat),
    }))
}

/// Parses the factor of each head: one number for all heads, or one per head, each written as `20` or `1/0.05`. `;`
/// separates layers with different factors.
fn factors(at: &SiteContext, value: &ChangeValue) -> Option<Vec<Multiplier>> {
    let heads = *at.value.shape().get(1)?;
    let number = |word: &str| match word.strip_prefix("1/") {
        Some(scale) => Some(Multiplier::Divisor(scale.parse().ok()?)),
        None => Some(Multiplier::Number(word.parse().ok()?)),
    };
    let typed = value.to_string();
    let of_layer = match typed.contains(';') {
        true => typed.split(';').nth(at.site.layer?)?,
        false => &typed,
    };
    let each = of_layer.split(',').map(|word| number(word.trim()));
    let factors = match each.collect::<Option<Vec<Multiplier>>>()?.as_slice() {
        [one] => vec![*one; heads],
        each => each.to_vec(),
    };
    let is_real = factors.iter().all(|by| by.factor().is_finite() && by.factor() != 0.0);
    (factors.len() == heads && is_real && factors.iter().any(|by| by.factor() != 1.0)).then_some(factors)
}

/// Returns the first index of the rows that this pass writes. Earlier rows were scaled when they were written.
fn first_new(at: &SiteContext) -> usize {
    at.value.rows().saturating_sub(at.positions.len()) * at.value.row_len()
}

/// Multiplies the new rows of each head by a factor.
fn scaled(at: &SiteContext, factors: &[Multiplier]) -> Option<Tensor> {
    let (first, head_dim) = (first_new(at), *at.value.shape().get(2)?);
    let new = at.value.data().len() - first;
    let rows = at.n.gathered(&[at.value], &[new], |flat| (0, first + flat));
    let times = |&by: &Multiplier| at.n.scale(&rows, by);
    let by_head: Vec<Tensor> = match factors {
        [one, others @ ..] if others.iter().all(|other| other == one) => vec![times(one)],
        factors => factors.iter().map(times).collect(),
    };
    let all: Vec<&Tensor> = [at.value].into_iter().chain(&by_head).collect();
    Some(at.n.gathered(&all, at.value.shape(), |flat| match flat.checked_sub(first) {
        Some(new) => (1 + flat / head_dim % factors.len() % by_head.len(), new),
        None => (0, flat),
    }))
}

/// Estimates the factor of each head by least squares.
fn read_factors(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let &[_, heads, head_dim] = at.value.shape() else { return Vec::new() };
    let first = first_new(at);
    let estimate = |head: Option<usize>| {
        let is_in = |flat: usize| head.is_none_or(|head| flat / head_dim % heads == head);
        let pairs = at.value.data().iter().zip(theirs).enumerate().skip(first);
        let of_head = pairs.filter(|(flat, _)| is_in(*flat)).map(|(_, (&x, &y))| (f64::from(x), y));
        let stored = stored_scale(at, head);
        FactorEstimate::read(of_head).map(|factor| match stored {
            Some(scale) if factor.holds(f64::from(scale).recip()) => {
                [(); 2].map(|()| format!("1/{}", ChangeValue::Number(scale.into())))
            }
            _ => plain(&factor, at),
        })
    };
    let mut words: Vec<String> = estimate(None).map_or(Vec::new(), Vec::from);
    let each: Option<Vec<[String; 2]>> = (0..heads).map(|head| estimate(Some(head))).collect();
    let each = each.filter(|each| each.iter().any(|one| *one != each[0])).unwrap_or_default();
    if !each.is_empty() {
        let joined =
            |index: usize| each.iter().map(|words| words[index].as_str()).collect::<Vec<_>>().join(",");
        words.extend([joined(0), joined(1)]);
    }
    words.into_iter().map(number_or_word).collect()
}

/// Returns the scale that the file stores for the cache of a head, or of all heads.
fn stored_scale(at: &SiteContext, head: Option<usize>) -> Option<f32> {
    let point = if at.site.point == Point::KCache { Point::K } else { Point::V };
    let product = at.operations.product(point, at.site.layer)?;
    match (product.w.cache_scales()?, head) {
        (&[one], _) => Some(one),
        (each, head) => each.get(head?).copied(),
    }
}

/// Returns a number if the word can be parsed as one, in the syntax of `--suppose`.
fn number_or_word(word: String) -> ChangeValue {
    word.parse().map_or_else(|_| ChangeValue::Word(word), ChangeValue::Number)
}

/// Returns a factor in two forms: as a number with few digits, and as the reciprocal of such a number, since
/// engines store the scale that they divide by. The form with fewer digits is first.
fn plain(factor: &FactorEstimate, at: &SiteContext) -> [String; 2] {
    const MOST_DIGITS: i32 = 9;
    let number = factor.values(at, &[1.0]).first().and_then(ChangeValue::number).unwrap_or(1.0);
    let digits_of = |is_right: &dyn Fn(i32) -> bool| {
        (1..MOST_DIGITS).find(|digits| is_right(*digits)).unwrap_or(MOST_DIGITS)
    };
    let of_number = digits_of(&|digits| rounded_to(digits, number) == number);
    let of_scale = digits_of(&|digits| factor.holds(rounded_to(digits, number.recip()).recip()));
    let scale = rounded_to(of_scale, number.recip());
    let mut words = [ChangeValue::Number(number).to_string(), format!("1/{}", ChangeValue::Number(scale))];
    if of_scale < of_number {
        words.reverse();
    }
    words
}
