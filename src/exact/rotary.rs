//! RoPE: pairs of values that are turned by an angle.
//!
//! An angle of a radians that was computed in `f32` is off by a few roundings of its own size, which far from the
//! beginning of a sequence is more than all the rest; so does the power that gives its frequency.

use std::ops::Range;

use crate::exact::input::{Input, Known};
use crate::exact::norm::per_row;
use crate::exact::profile::{Angles, Choice, Profile};
use crate::exact::stage::Stage;
use crate::exact::value::{Exact, U};
use crate::ops::rope::Rope;
use crate::tensor::Tensor;

/// Each head of `[T, H, D]`, turned.
pub struct Rotary {
    /// `[T, H, D]`
    pub x: Tensor,
    /// The angles.
    pub rope: Rope,
    /// Of the tokens.
    pub positions: Range<usize>,
}

impl Stage for Rotary {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<Exact> {
        let width = self.x.row_len();
        let first = wanted.first().map_or(0, |flat| flat / width);
        let last = wanted.last().map_or(0, |flat| flat / width);
        let turns: Vec<Vec<Turn>> = (first..=last)
            .map(|token| {
                let turn = |pair| Turn::new(&self.rope, self.positions.start + token, pair, profile);
                (0..self.rope.width / 2).map(turn).collect()
            })
            .collect();
        let by_token: Vec<&[usize]> = wanted.chunk_by(|a, b| a / width == b / width).collect();
        let x = Known::of(&self.x, profile);
        let of_token = |flat: &[usize]| {
            let token = flat[0] / width;
            per_row(&x, self.x.shape()[2], flat, |x, at| self.head(profile, x, &turns[token - first], at))
        };
        by_token.into_iter().flat_map(of_token).collect()
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::Rotated, Choice::CosSin]
    }
}

impl Rotary {
    fn head(&self, profile: &Profile, x: &Input, turns: &[Turn], wanted: &[usize]) -> Vec<Exact> {
        let (turned, pairing) = (self.rope.width, self.rope.pairing);
        let mut of = vec![(0, false); turned];
        for pair in 0..turned / 2 {
            let (first, second) = pairing.members(pair, turned);
            (of[first], of[second]) = ((pair, false), (pair, true));
        }
        let one = |&at: &usize| {
            let Some(&(pair, is_second)) = of.get(at) else { return x.get(at) };
            let (first, second) = pairing.members(pair, turned);
            let (a, b, Turn { cos, sin }) = (x.get(first), x.get(second), turns[pair]);
            let (one, other) = if is_second {
                (product(a, sin), product(b, cos))
            } else {
                (product(a, cos), product(b, sin))
            };
            let (one, other) = (one.rounded(profile.rotated), other.rounded(profile.rotated));
            let value = if is_second { one.value + other.value } else { one.value - other.value };
            let sigma = one.sigma.hypot(other.sigma);
            Exact { value, sigma, radius: one.radius + other.radius }
                .moved(0.5 * U * value.abs(), U * value.abs())
        };
        wanted.iter().map(one).collect()
    }
}

/// A product of two numbers that are both unsure.
fn product(x: Exact, factor: Exact) -> Exact {
    let value = x.value * factor.value;
    let radius = x.value.abs() * factor.radius + factor.value.abs() * x.radius + x.radius * factor.radius;
    let sigma = (x.value * factor.sigma).hypot(factor.value * x.sigma);
    Exact { value, sigma, radius }.moved(0.5 * U * value.abs(), U * value.abs())
}

/// The cosine and sine of an angle.
#[derive(Clone, Copy)]
struct Turn {
    cos: Exact,
    sin: Exact,
}

impl Turn {
    fn new(rope: &Rope, position: usize, pair: usize, profile: &Profile) -> Self {
        let exponent = 2.0 * pair as f64 / rope.width as f64;
        let angle = position as f64 * rope.exact_frequency(pair);
        let steps = match profile.angles {
            Angles::Direct => 4.0 + f64::from(rope.theta).ln() * exponent,
            // Each multiplication rounds, and repeats what the factor itself was off by.
            Angles::Iterated => {
                4.0 + (3.0 + f64::from(rope.theta).ln() * 2.0 / rope.width as f64) * pair as f64
            }
        };
        let off = angle.abs() * U * steps;
        let library = (2.0 * profile.library_ulps + 1.0) * U;
        let (sin, cos) = angle.sin_cos();
        // The change of a cosine is second order where it is largest.
        let magnitude = f64::from(rope.magnitude());
        let near = |value: f64, slope: f64| {
            let radius = slope.abs() * off + off * off / 2.0 + library * value.abs();
            let stretched = value * magnitude;
            let rounding = if magnitude == 1.0 { 0.0 } else { U * stretched.abs() };
            Exact::bounded(stretched, radius * magnitude.abs() + rounding).rounded(profile.cos_sin)
        };
        Self { cos: near(cos, sin), sin: near(sin, cos) }
    }
}
