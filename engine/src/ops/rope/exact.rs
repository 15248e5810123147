//! Exact evaluation of RoPE: rotation of pairs of values by an angle.
//!
//! An angle computed in `f32` has an error of a few roundings relative to its size. Far from the beginning of a
//! sequence, this error exceeds all others. The power that gives the frequency has the same kind of error.

use std::ops::Range;

use crate::exact::input::{InputTensor, InputValues};
use crate::exact::operation::{per_row, rows_around};
use crate::exact::value::{U, both};
use crate::exact::{Angles, Choice, ExactValue, Float, Operation, Profile};
use crate::ops::rope::Rope;
use crate::tensor::Tensor;

/// Rotates each head of `[T, H, D]`.
pub struct Rotary {
    /// `[T, H, D]`
    pub x: Tensor,
    /// The angles and the pairing.
    pub(crate) rope: Rope,
    /// Positions of the tokens.
    pub(crate) positions: Range<usize>,
}

impl Operation for Rotary {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let width = self.x.row_len();
        let first = wanted.first().map_or(0, |flat| flat / width);
        let last = wanted.last().map_or(0, |flat| flat / width);
        let pairs: Vec<PairRotation> =
            (0..self.rope.width / 2).map(|pair| PairRotation::new(&self.rope, pair, profile)).collect();
        let turns: Vec<Vec<CosineAndSine>> = (first..=last)
            .map(|token| {
                pairs.iter().map(|pair| pair.turned(self.positions.start + token, profile)).collect()
            })
            .collect();
        let (x, head_dim) =
            (InputTensor::read(&self.x, profile, rows_around(wanted, width)), self.x.shape()[2]);
        let of = self.places();
        per_row(wanted, head_dim, |flats, exacts| {
            let (token, start) = (flats[0] / width, flats[0] / head_dim * head_dim);
            let head = (x.part(start, head_dim), start);
            self.head(profile, head, &turns[token - first], &of, flats, exacts);
        })
    }

    fn results(&self, profile: &Profile) -> Float {
        profile.stream()
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::Rotated, Choice::CosSin, Choice::WholeCosines, Choice::ChainedNorms]
    }
}

impl Rotary {
    /// Returns, for each rotated value of a head, the index of its pair, and true if it is the second value of the
    /// pair.
    fn places(&self) -> Vec<(usize, bool)> {
        let (turned, pairing) = (self.rope.width, self.rope.pairing);
        let mut of = vec![(0, false); turned];
        for pair in 0..turned / 2 {
            let (first, second) = pairing.members(pair, turned);
            (of[first], of[second]) = ((pair, false), (pair, true));
        }
        of
    }

    /// Evaluates the requested values of a head that begins at `start`.
    fn head(
        &self,
        profile: &Profile,
        (x, start): (InputValues, usize),
        turns: &[CosineAndSine],
        of: &[(usize, bool)],
        wanted: &[usize],
        exacts: &mut Vec<ExactValue>,
    ) {
        let (turned, pairing) = (self.rope.width, self.rope.pairing);
        let one = |&flat: &usize| {
            let Some(&(pair, is_second)) = of.get(flat - start) else { return x.get(flat - start) };
            let (first, second) = pairing.members(pair, turned);
            let (a, b, CosineAndSine { cos, sin }) = (x.get(first), x.get(second), turns[pair]);
            let (one, other) = if is_second {
                (product(a, sin), product(b, cos))
            } else {
                (product(a, cos), product(b, sin))
            };
            let of_cosine = if profile.whole_cosines { Float::F32 } else { profile.rotated };
            let [first, second] =
                if is_second { [profile.rotated, of_cosine] } else { [of_cosine, profile.rotated] };
            let (one, other) = (one.rounded(first), other.rounded(second));
            let value = if is_second { one.value + other.value } else { one.value - other.value };
            let sigma = both(one.sigma, other.sigma);
            ExactValue { value, sigma, radius: one.radius + other.radius }
                .moved(0.5 * U * value.abs(), U * value.abs())
        };
        exacts.extend(wanted.iter().map(one));
    }
}

/// Evaluates a product of two uncertain numbers.
#[inline(always)]
fn product(x: ExactValue, factor: ExactValue) -> ExactValue {
    let value = x.value * factor.value;
    let radius = x.value.abs() * factor.radius + factor.value.abs() * x.radius + x.radius * factor.radius;
    let sigma = both(x.value * factor.sigma, factor.value * x.sigma);
    ExactValue { value, sigma, radius }.moved(0.5 * U * value.abs(), U * value.abs())
}

/// The cosine and sine of an angle.
#[derive(Clone, Copy)]
struct CosineAndSine {
    cos: ExactValue,
    sin: ExactValue,
}

/// The rotation of a pair of values, for all positions.
struct PairRotation {
    /// Frequency in radians per position.
    frequency: f64,
    /// Number of roundings of an angle.
    steps: f64,
    /// Factor of cosines and sines, and number of roundings in computing and applying it.
    magnitude: (f64, f64),
}

impl PairRotation {
    fn new(rope: &Rope, pair: usize, profile: &Profile) -> Self {
        let exponent = 2.0 * pair as f64 / rope.width as f64;
        let steps = match profile.angles {
            Angles::Direct => 4.0 + f64::from(rope.theta).ln() * exponent,
            // Each multiplication rounds, and repeats the error of the factor.
            Angles::Iterated => {
                4.0 + (3.0 + f64::from(rope.theta).ln() * 2.0 / rope.width as f64) * pair as f64
            }
        };
        let steps = steps + rope.mixing_steps(pair);
        Self { frequency: rope.exact_frequency(pair), steps, magnitude: rope.exact_magnitude() }
    }

    /// Evaluates the cosine and sine at a position.
    fn turned(&self, position: usize, profile: &Profile) -> CosineAndSine {
        let angle = position as f64 * self.frequency;
        let off = angle.abs() * U * self.steps;
        let library = (2.0 * profile.library_ulps + 1.0) * U;
        let (sin, cos) = angle.sin_cos();
        // A cosine changes only to second order near its maximum.
        let (magnitude, roundings) = self.magnitude;
        let near = |value: f64, slope: f64| {
            let radius = slope.abs() * off + off * off / 2.0 + library * value.abs();
            let stretched = value * magnitude;
            let rounding = roundings * U * stretched.abs();
            ExactValue::bounded(stretched, radius * magnitude.abs() + rounding).rounded(profile.cos_sin)
        };
        CosineAndSine { cos: near(cos, sin), sin: near(sin, cos) }
    }
}
