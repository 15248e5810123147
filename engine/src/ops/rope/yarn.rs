//! YaRN (Peng et al., 2023): scaling of RoPE's frequencies for longer contexts. High frequencies are kept, low ones
//! divided by the factor, and frequencies between mixed by a ramp; cosines and sines are multiplied by a magnitude.

use std::f64::consts::TAU;
use std::fmt;

/// Default number of turns within the original context above which a frequency is kept.
const BETA_FAST: f32 = 32.0;
/// Default number of turns within the original context below which a frequency is divided by the factor.
const BETA_SLOW: f32 = 1.0;

/// YaRN's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Divisor of RoPE's low frequencies, 1 or more.
    pub factor: f32,
    /// Original context: number of positions of the first training.
    pub(crate) original_context: f32,
    /// Frequencies that turn more often than this within the original context are kept.
    pub(crate) beta_fast: f32,
    /// Frequencies that turn less often than this within the original context are divided by the factor.
    pub(crate) beta_slow: f32,
    /// True if both ends of the ramp are rounded outwards to whole pairs.
    pub(crate) truncates: bool,
    /// Factor of cosines and sines.
    pub(crate) magnitude: YarnMagnitude,
}

/// YaRN's factor of cosines and sines, in the form that files state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct YarnMagnitude {
    /// The factor, if the file states it.
    pub(crate) stated: Option<f32>,
    /// Weight of the logarithm in `1 + 0.1 · weight · ln factor`. Used if the file does not state the factor.
    pub(crate) mscale: f32,
    /// Weight of the logarithm in a second such expression, by which the first one is divided. 0 for no divisor.
    pub(crate) mscale_all_dim: f32,
    /// Number by which the magnitude is multiplied in addition.
    pub(crate) times: f32,
}

impl YarnMagnitude {
    /// The paper's factor, `1 + 0.1 ln factor`.
    pub(crate) const DEFAULT: Self = Self { stated: None, mscale: 1.0, mscale_all_dim: 0.0, times: 1.0 };
}

impl Yarn {
    /// Returns the settings for a factor and an original context, with the defaults of transformers and llama.cpp.
    pub fn new(factor: f32, original_context: f32) -> Self {
        Self {
            factor,
            original_context,
            beta_fast: BETA_FAST,
            beta_slow: BETA_SLOW,
            truncates: true,
            magnitude: YarnMagnitude::DEFAULT,
        }
    }

    /// Returns the same scaling with a stated factor of cosines and sines.
    pub(crate) fn with_magnitude(self, magnitude: f32) -> Self {
        Self { magnitude: YarnMagnitude { stated: Some(magnitude), ..YarnMagnitude::DEFAULT }, ..self }
    }

    /// Returns the setting that is out of range, its value and what is expected, if any.
    pub(crate) fn bad_setting(&self) -> Option<(&'static str, f32, &'static str)> {
        let is_positive = |number: f32| number > 0.0 && number.is_finite();
        let settings = [
            ("YaRN factor", self.factor, self.factor >= 1.0 && self.factor.is_finite(), "1 or more"),
            (
                "YaRN original context",
                self.original_context,
                is_positive(self.original_context),
                "1 position or more",
            ),
            ("YaRN beta_slow", self.beta_slow, is_positive(self.beta_slow), "a positive number"),
            (
                "YaRN beta_fast",
                self.beta_fast,
                self.beta_fast > self.beta_slow && self.beta_fast.is_finite(),
                "a number above beta_slow",
            ),
            ("YaRN attention factor", self.magnitude(), is_positive(self.magnitude()), "a positive number"),
        ];
        let bad = settings.into_iter().find(|(_, _, is_sound, _)| !is_sound);
        bad.map(|(name, value, _, expected)| (name, value, expected))
    }

    /// Returns the factor of cosines and sines.
    pub(crate) fn exact_magnitude(&self) -> f64 {
        let YarnMagnitude { stated, mscale, mscale_all_dim, times } = self.magnitude;
        let by = |weight: f32| 1.0 + 0.1 * f64::from(weight) * f64::from(self.factor).ln();
        stated.map_or(by(mscale) / by(mscale_all_dim), f64::from) * f64::from(times)
    }

    /// Returns the factor of cosines and sines as transformers computes it: in `f64`, rounded once.
    pub fn magnitude(&self) -> f32 {
        self.exact_magnitude() as f32
    }

    /// Returns the factor of cosines and sines as llama.cpp computes it. llama.cpp's context divides by the factor that
    /// its kernel multiplies by; the compiler fuses the sum in that factor.
    pub(crate) fn ggml_magnitude(&self) -> f32 {
        let freq_scale = 1.0 / self.factor;
        let log = (1.0 / freq_scale).ln();
        let YarnMagnitude { stated, mscale, mscale_all_dim, times } = self.magnitude;
        let by = |weight: f32| 0.1 * weight * log + 1.0;
        let whole = 0.1_f32.mul_add(log, 1.0);
        match stated {
            Some(stated) => stated * times,
            None => by(mscale) / by(mscale_all_dim) * (1.0 / (1.0 + 0.1 * log)) * times * whole,
        }
    }

    /// Returns the number of roundings in the factor of cosines and sines and in the product with it. If the factor is
    /// not stated, engines may compute it from logarithms in `f32`, even if it is 1.
    pub(crate) fn magnitude_roundings(&self) -> f64 {
        match self.magnitude.stated {
            None => 8.0,
            Some(_) if self.exact_magnitude() == 1.0 => 0.0,
            Some(_) => 2.0,
        }
    }

    /// Returns the first and the last pair of the ramp for RoPE of this base and width.
    fn ramp(&self, theta: f32, width: usize) -> [f64; 2] {
        let pair = |turns: f32| {
            let log = (f64::from(self.original_context) / (f64::from(turns) * TAU)).ln();
            width as f64 * log / (2.0 * f64::from(theta).ln())
        };
        let ends = [pair(self.beta_fast), pair(self.beta_slow)];
        let [low, high] = if self.truncates { [ends[0].floor(), ends[1].ceil()] } else { ends };
        let [low, high] = [low.max(0.0), high.min(width as f64 - 1.0)];
        // transformers and ggml keep the ramp from dividing by zero.
        if low == high { [low, high + 0.001] } else { [low, high] }
    }

    /// Returns true if the ramp rises from its first to its last pair. Otherwise engines compute different frequencies.
    pub(crate) fn has_ramp(&self, theta: f32, width: usize) -> bool {
        let [low, high] = self.ramp(theta, width);
        low < high
    }

    /// Returns the position of a pair on the ramp: 0 at the ramp's first pair, 1 at its last.
    fn place(&self, theta: f32, width: usize, pair: usize) -> f64 {
        let [low, high] = self.ramp(theta, width);
        (pair as f64 - low) / (high - low)
    }

    /// Returns the part of a pair's frequency that is divided by the factor, from 0 to 1.
    pub(crate) fn exact_part(&self, theta: f32, width: usize, pair: usize) -> f64 {
        self.place(theta, width, pair).clamp(0.0, 1.0)
    }

    /// Returns the relative error of a pair's frequency that mixing causes, in roundings of the frequency.
    pub(crate) fn mixing_steps(&self, theta: f32, width: usize, pair: usize) -> f64 {
        let [low, high] = self.ramp(theta, width);
        // Whole pairs have no rounding error. Otherwise that of the first pair is divided by the ramp's width.
        let of_ramp = if self.truncates { 0.0 } else { low / (high - low) };
        let place = self.place(theta, width, pair);
        let margin = of_ramp * f64::from(f32::EPSILON);
        let is_unmixed = if margin == 0.0 {
            !(place > 0.0 && place < 1.0)
        } else {
            !(-margin..=1.0 + margin).contains(&place)
        };
        if is_unmixed {
            return 4.0;
        }
        // The ramp's error is relative to 1, and counts by the unscaled frequency.
        let part = place.clamp(0.0, 1.0);
        6.0 + (4.0 + of_ramp) / (1.0 - part + part / f64::from(self.factor))
    }

    /// Returns a pair's frequency from `power`, the inverse of its unscaled frequency, with each step in `f32` as in
    /// transformers.
    pub(crate) fn frequency(&self, power: f32, theta: f32, width: usize, pair: usize) -> f32 {
        let [low, high] = self.ramp(theta, width);
        let kept = 1.0 - ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
        1.0 / (self.factor * power) * (1.0 - kept) + 1.0 / power * kept
    }

    /// Returns a pair's angle from its unscaled angle as ggml does, with a fused sum.
    pub(crate) fn ggml_angle(&self, angle: f32, theta: f32, width: usize, pair: usize) -> f32 {
        let [low, high] = self.ramp(theta, width).map(|end| end as f32);
        let kept = 1.0 - ((pair as f32 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let divided = 1.0 / self.factor * angle;
        divided.mul_add(1.0 - kept, angle * kept)
    }
}

/// Writes the settings as `--suppose rope_scaling` takes them: factor and original context, then what is not default.
impl fmt::Display for Yarn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "yarn:{}:{}", self.factor, self.original_context)?;
        let is_default = self.magnitude == YarnMagnitude::DEFAULT;
        if !is_default || [self.beta_fast, self.beta_slow] != [BETA_FAST, BETA_SLOW] {
            write!(f, ":{}:{}", self.beta_fast, self.beta_slow)?;
        }
        if !is_default {
            write!(f, ":{}", self.magnitude())?;
        }
        Ok(())
    }
}
