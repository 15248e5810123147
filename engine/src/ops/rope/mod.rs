//! Rotary position embeddings (Su et al., 2021).
//!
//! Pair `(a, b)` of a head becomes `(a·cos φ - b·sin φ, a·sin φ + b·cos φ)`. The angle of pair `i` at position `p` is `φ =
//! p · theta^(-2i / width)`, if the frequencies are not scaled. `[T, H, D]` to `[T, H, D]`.

pub mod exact;
pub(crate) mod faults;
pub mod yarn;

use std::ops::Range;

use multiversion::multiversion;

use crate::ops::rope::yarn::Yarn;
use crate::tensor::{RopePairing, Tensor};

/// RoPE settings of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies: pair `i` rotates by `theta^(-2i / width)` radians per position.
    pub theta: f32,
    /// Number of leading values of a head that rotate. The other values are unchanged.
    pub width: usize,
    /// Pairing: the two values of a head that rotate together.
    pub pairing: RopePairing,
    /// Scaling of the frequencies for contexts longer than the original context.
    pub scaling: RopeScaling,
    /// Values that the architecture's authors round to the type of activations.
    pub rounding: RopeRounding,
}

/// Values of RoPE that are rounded to the type of activations. The results always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RopeRounding {
    /// Cosines, sines and products.
    #[default]
    Each,
    /// Cosines and sines.
    Tables,
    /// Neither.
    Results,
}

/// Scaling of RoPE's frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Divisors of the pairs' frequencies, as stored in GGUF files.
    Factors(Vec<f32>),
    /// Divisor of every frequency (Chen et al., 2023).
    Linear(f32),
    /// Llama 3.1's scaling: low frequencies are divided by `factor`, high ones kept, and frequencies between
    /// interpolated.
    Llama3 {
        /// Divisor of the low frequencies of RoPE.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are low frequencies.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are high frequencies.
        high_freq_factor: f32,
        /// Original context: number of positions of the first training.
        original_context: f32,
    },
    /// LongRoPE (Ding et al., 2024): each pair's frequency has its own divisor. The divisors change in passes beyond
    /// the original context, and cosines and sines are multiplied by a magnitude.
    Long {
        /// Divisors of the frequencies in passes that end within the original context.
        short: Vec<f32>,
        /// Divisors of the frequencies in passes that end beyond the original context.
        long: Vec<f32>,
        /// Original context: number of positions of the first training.
        original_context: usize,
        /// Factor of cosines and sines.
        magnitude: f32,
    },
    /// LongRoPE with the factors of one pass.
    Stretched {
        /// Divisor of each pair's frequency.
        factors: Vec<f32>,
        /// Factor of cosines and sines.
        magnitude: f32,
    },
    /// YaRN (Peng et al., 2023).
    Yarn(Yarn),
}

impl Rope {
    /// Returns a pair's scaled frequency in radians per position, with each step in `f32` as in transformers.
    fn frequency(&self, pair: usize) -> f32 {
        let unscaled = self.unscaled_frequency(pair);
        match &self.scaling {
            RopeScaling::None => unscaled,
            RopeScaling::Factors(factors) => unscaled / factors[pair],
            RopeScaling::Linear(factor) => unscaled / factor,
            // One division, as in transformers.
            RopeScaling::Long { short: factors, .. } | RopeScaling::Stretched { factors, .. } => {
                1.0 / (factors[pair] * self.power(pair))
            }
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let wavelength = 2.0 * std::f32::consts::PI / unscaled;
                if wavelength < original_context / high_freq_factor {
                    return unscaled;
                }
                if wavelength > original_context / low_freq_factor {
                    return unscaled / factor;
                }
                let smooth =
                    (original_context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - smooth) * unscaled / factor + smooth * unscaled
            }
            RopeScaling::Yarn(yarn) => yarn.frequency(self.power(pair), self.theta, self.width, pair),
        }
    }

    /// Returns a pair's scaled frequency in `f64`, by the formula.
    pub(crate) fn exact_frequency(&self, pair: usize) -> f64 {
        let unscaled = f64::from(self.theta).powf(-2.0 * pair as f64 / self.width as f64);
        match &self.scaling {
            RopeScaling::None => unscaled,
            RopeScaling::Factors(factors)
            | RopeScaling::Long { short: factors, .. }
            | RopeScaling::Stretched { factors, .. } => unscaled / f64::from(factors[pair]),
            RopeScaling::Linear(factor) => unscaled / f64::from(*factor),
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let [factor, low, high, context] =
                    [factor, low_freq_factor, high_freq_factor, original_context].map(f64::from);
                let wavelength = std::f64::consts::TAU / unscaled;
                if wavelength < context / high {
                    return unscaled;
                }
                if wavelength > context / low {
                    return unscaled / factor;
                }
                let smooth = (context / wavelength - low) / (high - low);
                (1.0 - smooth) * unscaled / factor + smooth * unscaled
            }
            RopeScaling::Yarn(yarn) => {
                let part = yarn.exact_part(self.theta, self.width, pair);
                part * unscaled / f64::from(yarn.factor) + (1.0 - part) * unscaled
            }
        }
    }

    fn unscaled_frequency(&self, pair: usize) -> f32 {
        1.0 / self.power(pair)
    }

    fn power(&self, pair: usize) -> f32 {
        self.theta.powf((2 * pair) as f32 / self.width as f32)
    }

    /// Returns the factor of cosines and sines.
    pub(crate) fn magnitude(&self) -> f32 {
        match self.scaling {
            RopeScaling::Long { magnitude, .. } | RopeScaling::Stretched { magnitude, .. } => magnitude,
            RopeScaling::Yarn(yarn) => yarn.magnitude(),
            _ => 1.0,
        }
    }

    /// Returns the factor of cosines and sines as llama.cpp computes it.
    pub(crate) fn ggml_magnitude(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn(yarn) => yarn.ggml_magnitude(),
            _ => self.magnitude(),
        }
    }

    /// Returns the factor of cosines and sines, and the number of roundings in computing and applying it.
    pub(crate) fn exact_magnitude(&self) -> (f64, f64) {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => (yarn.exact_magnitude(), yarn.magnitude_roundings()),
            _ if self.magnitude() == 1.0 => (1.0, 0.0),
            _ => (f64::from(self.magnitude()), 1.0),
        }
    }

    /// Returns the relative error that YaRN's mixing causes in a pair's angle, in roundings of the scaled angle.
    pub(crate) fn mixing_steps(&self, pair: usize) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.mixing_steps(self.theta, self.width, pair),
            _ => 0.0,
        }
    }

    /// Returns the length of the longest sequence that uses LongRoPE's short factors. `None` if the long factors are
    /// the same.
    pub(crate) fn long_beyond(&self) -> Option<usize> {
        match &self.scaling {
            RopeScaling::Long { short, long, original_context, .. } => {
                (short != long).then_some(*original_context)
            }
            _ => None,
        }
    }

    /// Returns the rotation for a sequence of this length.
    pub(crate) fn within(&self, length: usize) -> Self {
        match &self.scaling {
            RopeScaling::Long { short, long, original_context, magnitude } => {
                let factors = if length > *original_context { long } else { short }.clone();
                let scaling = RopeScaling::Stretched { factors, magnitude: *magnitude };
                Self { scaling, ..self.clone() }
            }
            _ => self.clone(),
        }
    }

    /// Scales a pair's angle as ggml does: linear scaling multiplies by the inverse factor.
    fn scaled(&self, angle: f32, pair: usize) -> f32 {
        match &self.scaling {
            RopeScaling::None => angle,
            RopeScaling::Factors(factors)
            | RopeScaling::Long { short: factors, .. }
            | RopeScaling::Stretched { factors, .. } => angle / factors[pair],
            RopeScaling::Linear(factor) => angle * (1.0 / factor),
            RopeScaling::Llama3 { .. } => angle / (self.unscaled_frequency(pair) / self.frequency(pair)),
            RopeScaling::Yarn(yarn) => yarn.ggml_angle(angle, self.theta, self.width, pair),
        }
    }
}

/// Cosines and sines for every position of a pass and every pair, each `[T, width / 2]`.
#[derive(Clone, Debug)]
pub struct RopeTable {
    rope: Rope,
    positions: Range<usize>,
    cos: Tensor,
    sin: Tensor,
}

impl RopeTable {
    /// Computes the table; `angles(rope, position, out)` writes the angle of each pair in radians.
    pub(crate) fn new(
        rope: &Rope,
        positions: Range<usize>,
        angles: impl Fn(&Rope, usize, &mut [f32]) + Sync,
    ) -> Self {
        Self::with_magnitude(rope, positions, angles, rope.magnitude())
    }

    /// Computes the table with another factor of cosines and sines.
    pub(crate) fn with_magnitude(
        rope: &Rope,
        positions: Range<usize>,
        angles: impl Fn(&Rope, usize, &mut [f32]) + Sync,
        magnitude: f32,
    ) -> Self {
        let (pairs, rope) = (rope.width / 2, rope.within(positions.end));
        let angles =
            Tensor::from_rows(positions.len(), pairs, |row, out| angles(&rope, positions.start + row, out));
        let (cos, sin) = (angles.clone().map(|a| a.cos() * magnitude), angles.map(|a| a.sin() * magnitude));
        Self { rope, positions, cos, sin }
    }

    /// Returns the settings that the table was made for.
    pub(crate) fn rope(&self) -> &Rope {
        &self.rope
    }

    /// Returns the positions of the table's rows.
    pub(crate) fn positions(&self) -> Range<usize> {
        self.positions.clone()
    }

    /// Returns the largest angle of the table: that of the first pair, which rotates by one radian per position.
    pub(crate) fn largest_angle(&self) -> f64 {
        self.positions.end.saturating_sub(1) as f64
    }

    /// Applies `round` to each cosine and sine.
    pub(crate) fn rounded(self, round: impl Fn(f32) -> f32 + Sync) -> Self {
        Self { cos: self.cos.map(&round), sin: self.sin.map(&round), ..self }
    }

    /// Rotates each head of `x` (`[T, H, D]`) by its token's angles; `round` is applied to every product and sum.
    pub(crate) fn rotate(&self, x: &Tensor, round: impl Fn(f32) -> f32 + Sync) -> Tensor {
        self.per_token(x, |heads, x, angles, out| {
            turn(heads, x, angles, out, |[x, y], [cos, sin]| {
                [round(round(x * cos) - round(y * sin)), round(round(x * sin) + round(y * cos))]
            });
        })
    }

    /// Rotates with fused multiply-adds: the product with the pair's first value is fused, as in gcc's code for ggml's
    /// loop.
    pub(crate) fn rotate_fused(&self, x: &Tensor) -> Tensor {
        self.per_token(x, turn_fused)
    }

    /// Rotates all heads of a token with the token's cosines and sines.
    fn per_token(
        &self,
        x: &Tensor,
        turn: impl Fn(HeadLayout, &[f32], [&[f32]; 2], &mut [f32]) + Sync,
    ) -> Tensor {
        let &[tokens, heads, head_dim] = x.shape() else {
            panic!("RoPE takes [T, H, D], not {:?}", x.shape())
        };
        let rotated = Tensor::from_rows(tokens, heads * head_dim, |token, out| {
            turn(
                HeadLayout { pairing: self.rope.pairing, head_dim },
                x.row(token),
                [self.cos.row(token), self.sin.row(token)],
                out,
            );
        });
        rotated.reshaped(x.shape())
    }
}

/// Layout of the heads of a row.
#[derive(Clone, Copy)]
struct HeadLayout {
    pairing: RopePairing,
    head_dim: usize,
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn turn_fused(heads: HeadLayout, x: &[f32], angles: [&[f32]; 2], out: &mut [f32]) {
    turn(heads, x, angles, out, |[x, y], [cos, sin]| [x.mul_add(cos, -(y * sin)), x.mul_add(sin, y * cos)]);
}

/// Rotates every pair of every head by its cosine and sine.
#[inline(always)]
fn turn(
    HeadLayout { pairing, head_dim }: HeadLayout,
    x: &[f32],
    [cos, sin]: [&[f32]; 2],
    out: &mut [f32],
    turned: impl Fn([f32; 2], [f32; 2]) -> [f32; 2],
) {
    let width = 2 * cos.len();
    for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
        for pair in 0..cos.len() {
            let (first, second) = pairing.members(pair, width);
            [out[first], out[second]] = turned([x[first], x[second]], [cos[pair], sin[pair]]);
        }
        out[width..].copy_from_slice(&x[width..]);
    }
}

/// Computes each angle as `position · frequency`, as transformers does.
pub(crate) fn direct_angles(rope: &Rope, position: usize, out: &mut [f32]) {
    for (pair, angle) in out.iter_mut().enumerate() {
        *angle = position as f32 * rope.frequency(pair);
    }
}

/// Computes angles by repeated multiplication with `theta^(-2 / width)` in `f32`, then scales them, as ggml does.
pub(crate) fn iterated_angles(rope: &Rope, position: usize, out: &mut [f32]) {
    let step = rope.theta.powf(-2.0 / rope.width as f32);
    let mut next = position as f32;
    for (pair, angle) in out.iter_mut().enumerate() {
        *angle = rope.scaled(next, pair);
        next *= step;
    }
}
