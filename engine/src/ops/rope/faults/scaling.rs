//! Faults in RoPE's scaling: the syntax of `--suppose`, and estimates from the angles and sizes of rotated values.

use std::ops::RangeInclusive;

use crate::change::{ChangeValue, FactorEstimate, SiteContext, rounded_to};
use crate::ops::rope::exact::Rotary;
use crate::ops::rope::faults::yarn::{usual_magnitudes, yarn, yarn_of_ratio};
use crate::ops::rope::faults::{by_factors, near, pair_frequencies};
use crate::ops::rope::yarn::Yarn;
use crate::ops::rope::{Rope, RopeScaling};

/// Formats a scaling in the syntax of `--suppose`.
pub(super) fn told(scaling: &RopeScaling) -> String {
    match scaling {
        RopeScaling::None => "none".to_owned(),
        RopeScaling::Factors(_) | RopeScaling::Long { .. } => "factors of the file".to_owned(),
        RopeScaling::Stretched { magnitude, .. } => format!("factors of the file, times {magnitude}"),
        RopeScaling::Linear(factor) => format!("linear:{factor}"),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            format!("llama3:{factor}:{low_freq_factor}:{high_freq_factor}:{original_context}")
        }
        RopeScaling::Yarn(yarn) => yarn.to_string(),
    }
}

/// Parses a scaling in the syntax of `--suppose`, for a model's rotation.
pub(super) fn scaling(rope: &Rope, word: &str) -> Option<RopeScaling> {
    let mut parts = word.split(':');
    let name = parts.next()?;
    let numbers: Vec<f32> =
        parts.map(|part| part.parse().ok().filter(|&n| n > 0.0)).collect::<Option<_>>()?;
    let plain = Rope { scaling: RopeScaling::None, ..rope.clone() };
    let is_scaled = rope.scaling != RopeScaling::None;
    let factors = |f: fn(f64) -> f64| {
        let factor = |pair| f(plain.exact_frequency(pair) / rope.exact_frequency(pair)) as f32;
        Some(by_factors(rope, (0..rope.width / 2).map(factor).collect())).filter(|_| is_scaled)
    };
    match (name, numbers.as_slice()) {
        ("none", []) => Some(RopeScaling::None),
        ("factors-alone", []) => match &rope.scaling {
            RopeScaling::Stretched { factors, .. } => Some(RopeScaling::Factors(factors.clone())),
            RopeScaling::Yarn(yarn) => Some(RopeScaling::Yarn(yarn.with_magnitude(1.0))),
            _ => None,
        },
        ("magnitude", &[magnitude]) => with_magnitude(rope, magnitude),
        ("truncated" | "untruncated", []) => match rope.scaling {
            RopeScaling::Yarn(yarn) if yarn.truncates == (name == "untruncated") => {
                Some(RopeScaling::Yarn(Yarn { truncates: !yarn.truncates, ..yarn }))
            }
            _ => None,
        },
        ("inverse", []) => factors(|factor| 1.0 / factor),
        ("twice", []) => factors(|factor| factor * factor),
        ("linear", &[factor]) => Some(RopeScaling::Linear(factor)),
        ("llama3", &[factor, low_freq_factor, high_freq_factor, original_context]) => {
            Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context })
        }
        ("yarn", numbers) => yarn(rope, numbers).map(RopeScaling::Yarn),
        _ => None,
    }
}

/// Keeps the model's frequencies and replaces the factor of cosines and sines.
fn with_magnitude(rope: &Rope, magnitude: f32) -> Option<RopeScaling> {
    match &rope.scaling {
        RopeScaling::Yarn(yarn) => Some(RopeScaling::Yarn(yarn.with_magnitude(magnitude))),
        _ => {
            let plain = Rope { scaling: RopeScaling::None, ..rope.clone() };
            let factor = |pair| (plain.exact_frequency(pair) / rope.exact_frequency(pair)) as f32;
            let factors = (0..rope.width / 2).map(factor).collect();
            Some(RopeScaling::Stretched { factors, magnitude })
        }
    }
}

/// Plausible range of the factor of cosines and sines. A factor outside the range has another origin, such as the
/// scale of attention.
const MAGNITUDES: RangeInclusive<f64> = 0.6..=1.9;

/// Estimates the factor of cosines and sines, if all rotated values differ by one factor.
fn read_magnitude(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(Rotary { rope, x, .. }) = at.stage() else { return Vec::new() };
    let own = f64::from(rope.magnitude());
    // The part of a head that does not rotate keeps its values.
    let is_rotated = |flat: usize| flat % x.shape()[2] < rope.width;
    let pairs = at.value.data().iter().zip(theirs).enumerate().filter(|(flat, _)| is_rotated(*flat));
    let pairs = pairs.map(|(_, (&value, &theirs))| (f64::from(value) / own, theirs));
    let Some(read) = FactorEstimate::read(pairs).filter(|read| !read.holds(own)) else { return Vec::new() };
    let known = usual_magnitudes(&rope.scaling);
    let is_plausible =
        |value: &ChangeValue| value.number().is_some_and(|number| MAGNITUDES.contains(&number));
    let values = read.values(at, &known).into_iter().filter(is_plausible);
    values.map(|value| ChangeValue::Word(format!("magnitude:{value}"))).collect()
}

/// Estimates the scaling from the ratio of each pair's frequency to the unscaled one, and from the size of rotated
/// values.
pub(super) fn read_scaling(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(Rotary { rope, .. }) = at.stage() else { return Vec::new() };
    let magnitudes = read_magnitude(at, theirs);
    let plain = Rope { scaling: RopeScaling::None, ..rope.clone() };
    let ratios: Vec<f64> = pair_frequencies(at, theirs)
        .into_iter()
        .enumerate()
        .filter(|(_, (read, weight))| *read > 0.0 && weight.is_finite())
        .map(|(pair, (read, _))| plain.exact_frequency(pair) / read)
        .collect();
    let largest = ratios.iter().copied().fold(0.0, f64::max);
    let mut words = vec!["none".to_owned(), "inverse".to_owned(), "twice".to_owned()];
    // A factor of 1 means no scaling.
    let mut factors = [2, 3].map(|digits| rounded_to(digits, largest)).to_vec();
    factors.dedup();
    for factor in factors.into_iter().filter(|&factor| factor != 1.0) {
        words.push(format!("linear:{factor}"));
        if let RopeScaling::Llama3 { low_freq_factor, high_freq_factor, original_context, .. } = rope.scaling
        {
            words.push(format!("llama3:{factor}:{low_freq_factor}:{high_freq_factor}:{original_context}"));
        }
        words.push(format!("llama3:{factor}:1:4:8192"));
        words.extend(yarn_of_ratio(rope, factor));
    }
    near(at, theirs, words.into_iter().map(ChangeValue::Word).chain(magnitudes), "scaling")
}
