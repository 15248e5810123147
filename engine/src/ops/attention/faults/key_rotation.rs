//! Faults in the rotation of cached keys: attention reads keys before RoPE, or keys that were rotated twice.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext};
use crate::checkpoint::Point;
use crate::exact::node_of;
use crate::numerics::Numerics;
use crate::ops::attention::exact::Scores;
use crate::ops::cache::exact::CachedRows;
use crate::ops::rope::Rope;
use crate::ops::rope::exact::Rotary;
use crate::ops::rope::faults::inverse;
use crate::tensor::Tensor;

/// Wrong keys that attention may read, each with its meaning.
const READINGS: [(&str, &str); 4] = [
    (
        "prompt-unrotated",
        "the prompt's attention reads keys before RoPE, and later passes read rotated keys from the cache",
    ),
    (
        "new-unrotated",
        "attention reads the keys of its own pass before RoPE, and earlier keys rotated, from the cache",
    ),
    (
        "cached-unrotated",
        "keys are cached before RoPE and not rotated when later passes read them; each pass rotates its own keys",
    ),
    ("cached-twice", "cached keys are rotated again when later passes read them"),
];

/// Describes which keys attention reads.
pub(crate) fn meaning(word: &str) -> Option<&'static str> {
    READINGS.iter().find(|(known, _)| *known == word).map(|(_, meaning)| *meaning)
}

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::CacheRotation,
        at: &[Point::AttnScores],
        takes: "prompt-unrotated|new-unrotated|cached-unrotated|cached-twice",
        compute: |at, value| scores(at, value.as_word()?),
        usual: Some(|_| READINGS.map(|(word, _)| ChangeValue::word(word)).into()),
        ..CatalogueEntry::PLAIN
    },
    // The cache itself keeps the rotated keys, so that each pass rotates them again.
    CatalogueEntry {
        kind: CauseKind::CacheRotation,
        at: &[Point::KCache],
        takes: "stored-twice",
        compute: |at, value| (value.as_word()? == "stored-twice").then(|| twice(at, at.value))?,
        ..CatalogueEntry::PLAIN
    },
];

/// Computes the scores with other keys.
fn scores(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Scores { q, k, scale, .. } = at.stage()?;
    let rope = at.operations.rope(at.site.layer?)?;
    let earlier = k.rows().checked_sub(at.positions.len())?;
    let read = match word {
        "prompt-unrotated" | "new-unrotated" if earlier == 0 => unrotated(at, k, rope)?,
        "new-unrotated" => mixed(at, [k, &unrotated(at, k, rope)?], earlier),
        "cached-unrotated" if earlier > 0 => mixed(at, [&unrotated(at, k, rope)?, k], earlier),
        "cached-twice" => twice(at, k)?,
        _ => return None,
    };
    Some(at.n.scores(q, &read, *scale))
}

/// Rotates the keys of earlier passes again.
fn twice(at: &SiteContext, k: &Tensor) -> Option<Tensor> {
    let rope = at.operations.rope(at.site.layer?)?;
    let earlier = k.rows().checked_sub(at.positions.len()).filter(|earlier| *earlier > 0)?;
    let first = at.positions.end.checked_sub(k.rows())?;
    let rotated = at.n.rotate(k, &at.n.rope_table(rope, first..at.positions.end));
    Some(mixed(at, [&at.n.to_cache(rotated), k], earlier))
}

/// Returns the first `rows` rows of one tensor and the other rows of the other one.
fn mixed(at: &SiteContext, tensors: [&Tensor; 2], rows: usize) -> Tensor {
    let split = rows * tensors[0].row_len();
    at.n.gathered(&tensors, tensors[0].shape(), |flat| (usize::from(flat >= split), flat))
}

/// Returns the keys before RoPE, as the cache would store them: their recorded inputs if all keys have one, else the
/// keys rotated back.
fn unrotated(at: &SiteContext, k: &Tensor, rope: &Rope) -> Option<Tensor> {
    if let Some(keys) = inputs(at, k) {
        return Some(at.n.to_cache(keys));
    }
    let first = at.positions.end.checked_sub(k.rows())?;
    let table = at.n.rope_table(&inverse(rope), first..at.positions.end);
    Some(at.n.to_cache(at.n.rotate(k, &table)))
}

/// Returns the keys before RoPE of all cached keys. `None` if some of them are not traced.
fn inputs(at: &SiteContext, k: &Tensor) -> Option<Tensor> {
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut index: Vec<(usize, usize)> = Vec::new();
    for origin in k.origins() {
        let cached = node_of(origin)?;
        let rotated = &cached.operation::<CachedRows>()?.x;
        let [whole] = rotated.origins() else { return None };
        let rotation = node_of(whole)?;
        index.extend(origin.range.clone().map(|flat| (tensors.len(), flat)));
        tensors.push(rotation.operation::<Rotary>()?.x.clone());
    }
    let all: Vec<&Tensor> = tensors.iter().collect();
    (index.len() == k.data().len()).then(|| at.n.gathered(&all, k.shape(), |flat| index[flat]))
}
