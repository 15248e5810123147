//! Faults in the frequencies of some of RoPE's pairs, in the syntax of `--suppose rope_frequencies`: `4-7:x4`,
//! `6-7:unscaled`, `all:x0.5` or `0-1:short`, or several of these separated by commas.
//!
//! The search measures the ratio of each pair's frequency to the model's, and describes runs of pairs with the same
//! ratio.

use crate::change::{CauseKind, ChangeValue, SiteContext, distance, index_range, rounded_to, snapped};
use crate::numerics::Numerics;
use crate::ops::rope::exact::Rotary;
use crate::ops::rope::faults::scaling::read_scaling;
use crate::ops::rope::faults::{divided, pair_frequencies, read_theta, with};
use crate::ops::rope::{Rope, RopeScaling};
use crate::tensor::Tensor;
use crate::weight::DType;

/// Maximum number of runs of changed pairs. With more runs, any curve of frequencies could be described.
const MOST_RUNS: usize = 2;

/// Ratios of frequencies that known faults of ports produce.
const RATIOS: [f64; 12] = [0.5, 2.0, 0.25, 4.0, 0.125, 8.0, 1.0 / 16.0, 16.0, 1.0 / 32.0, 32.0, 0.75, 1.5];

/// Rotates heads with other RoPE frequencies for some pairs.
pub(super) fn changed(at: &SiteContext, word: &str) -> Option<Tensor> {
    let ratios = ratios(at, word).filter(|_| !is_plain(at, word))?;
    with(at, |rope| Some(divided(rope, |pair| 1.0 / ratios[pair])))
}

/// Returns true if the change equals a missing scaling, which is a separate entry.
fn is_plain(at: &SiteContext, word: &str) -> bool {
    let magnitude = at.stage::<Rotary>().map_or(1.0, |op| op.rope.magnitude());
    word == "all:unscaled" && magnitude == 1.0
}

/// Returns the changes to try if no ratio can be measured.
pub(super) fn usual(at: &SiteContext) -> Vec<ChangeValue> {
    let Some(Rotary { rope, .. }) = at.stage() else { return Vec::new() };
    let pairs = rope.width / 2;
    let mut words = vec![format!("{}:x0", pairs - 1), format!("{}-{}:x4", pairs / 2, pairs - 1)];
    if rope.scaling != RopeScaling::None {
        words.push(format!("{}-{}:unscaled", pairs / 2, pairs - 1));
        words.push("all:unscaled".to_owned());
    }
    words.into_iter().map(ChangeValue::Word).collect()
}

/// Returns the ratio of each pair's changed frequency to the model's.
fn ratios(at: &SiteContext, word: &str) -> Option<Vec<f64>> {
    let Rotary { rope, .. } = at.stage()?;
    let pairs = rope.width / 2;
    let mut ratios = vec![1.0; pairs];
    for part in word.split(',') {
        let (range, how) = part.split_once(':')?;
        let range = if range == "all" { 0..pairs } else { index_range(range)? };
        for pair in range.take_while(|&pair| pair < pairs) {
            ratios[pair] = ratio_of(at, rope, pair, how)?;
        }
    }
    ratios.iter().any(|&ratio| ratio != 1.0).then_some(ratios)
}

/// Returns the ratio that a word such as `x4` gives for one pair.
fn ratio_of(at: &SiteContext, rope: &Rope, pair: usize, how: &str) -> Option<f64> {
    let of = |other: &Rope| other.exact_frequency(pair) / rope.exact_frequency(pair);
    match how {
        "unscaled" => Some(of(&Rope { scaling: RopeScaling::None, ..rope.clone() })),
        // Parameters of other sites are those of a sequence of one token.
        "short" => at.operations.rope(at.site.layer?).filter(|short| *short != rope).map(of),
        _ => how.strip_prefix('x')?.parse().ok().filter(|ratio: &f64| *ratio >= 0.0 && ratio.is_finite()),
    }
}

/// Ratio of a pair's frequency to the model's, as measured, with its uncertainty.
#[derive(Clone, Copy)]
struct RatioEstimate {
    ratio: f64,
    tolerance: f64,
}

impl RatioEstimate {
    fn is(self, ratio: f64) -> bool {
        // A ratio that is this uncertain is read from too few turns.
        self.tolerance > 0.3 || (self.ratio - ratio).abs() <= self.tolerance * ratio.max(0.1)
    }
}

/// Estimates runs of pairs with changed frequencies. Returns nothing if another base or scaling comes as near to
/// the values.
pub(super) fn read(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(word) = estimates(at, theirs).and_then(|pairs| runs(at, &pairs)) else { return Vec::new() };
    let Some(off) = changed(at, &word).map(|made| distance(&made, theirs)) else { return Vec::new() };
    let entry = |kind: CauseKind| super::ENTRIES.iter().find(|entry| entry.kind == kind);
    let settings =
        [(CauseKind::RopeTheta, read_theta(at, theirs)), (CauseKind::RopeScaling, read_scaling(at, theirs))];
    let comes_as_near = settings.iter().any(|(kind, values)| {
        let made = values.iter().filter_map(|value| (entry(*kind)?.compute)(at, value));
        made.into_iter().any(|made| distance(&made, theirs) <= 2.0 * off)
    });
    if comes_as_near { Vec::new() } else { vec![ChangeValue::Word(word)] }
}

/// Returns the ratio of each pair's frequency to the model's. `None` if no pair has rotated.
fn estimates(at: &SiteContext, theirs: &[f64]) -> Option<Vec<RatioEstimate>> {
    let Rotary { rope, positions, .. } = at.stage()?;
    let last = positions.clone().next_back().filter(|&last| last > 0)?;
    let noise = match at.n.activation_type() {
        DType::BF16 => 1e-2,
        DType::F16 => 1e-3,
        _ => 1e-5,
    };
    let read = pair_frequencies(at, theirs).into_iter().enumerate().map(|(pair, (frequency, weight))| {
        let own = rope.exact_frequency(pair);
        let ratio = frequency / own;
        let is_read = ratio.is_finite() && weight > 0.0;
        let tolerance = if is_read { 2.0 * noise / (own * last as f64) + 1e-4 } else { 1.0 };
        RatioEstimate { ratio, tolerance }
    });
    Some(read.collect())
}

/// Describes the runs of pairs whose frequency differs from the model's. A pair with an uncertain ratio belongs to
/// the run before it.
fn runs(at: &SiteContext, pairs: &[RatioEstimate]) -> Option<String> {
    let Rotary { rope, .. } = at.stage()?;
    let is_of_all = |how: &&str| {
        let mut each = pairs.iter().enumerate();
        each.all(|(pair, estimate)| ratio_of(at, rope, pair, how).is_some_and(|ratio| estimate.is(ratio)))
    };
    if let Some(how) = ["x1", "unscaled", "short"].iter().find(|how| is_of_all(how)) {
        return (*how != "x1").then(|| format!("all:{how}"));
    }
    let mut runs: Vec<(usize, String)> = Vec::new();
    for (pair, estimate) in pairs.iter().enumerate() {
        let fits = |how: &str| ratio_of(at, rope, pair, how).is_some_and(|ratio| estimate.is(ratio));
        if runs.last().is_some_and(|(_, how)| fits(how)) {
            continue;
        }
        let named = ["x1", "unscaled", "short", "x0"].into_iter().find(|how| fits(how)).map(str::to_owned);
        let short = at.n.activation_type() != DType::F32;
        let number = snapped(estimate.ratio, &RATIOS, estimate.tolerance.max(1e-3)).first().copied();
        let number = number.or_else(|| (!short).then(|| rounded_to(3, estimate.ratio)));
        let how = named.or_else(|| number.map(|ratio| format!("x{ratio}")).filter(|how| fits(how)))?;
        runs.push((pair, how));
    }
    let ends = runs.iter().skip(1).map(|(first, _)| first - 1).chain([pairs.len() - 1]);
    let told: Vec<String> = runs
        .iter()
        .zip(ends)
        .filter(|((_, how), _)| how != "x1")
        .map(|((first, how), last)| match (*first, last) {
            (0, last) if last + 1 == pairs.len() => format!("all:{how}"),
            (first, last) if first == last => format!("{first}:{how}"),
            (first, last) => format!("{first}-{last}:{how}"),
        })
        .collect();
    // No rotation at all is a change of its own.
    let is_missing = told == ["all:x0"];
    ((1..=MOST_RUNS).contains(&told.len()) && !is_missing).then(|| told.join(","))
}
