//! Scales of groups of activations: number types of scales, powers of two, and scales that are stored in 8 bits.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::nearest_whole;
use crate::weight::DType;

/// Type of the scales of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaleType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Powers of two. The exponent is chosen so that the group's largest value, rounded to two bits, gets the largest
    /// exponent of the code type.
    #[serde(rename = "e8m0")]
    Power,
    /// Powers of two. The exponent is chosen so that the group's largest value gets the largest exponent of the code
    /// type, as in OCP's specification of microscaling formats. The value may exceed the largest code.
    #[serde(rename = "e8m0_floor")]
    PowerBelow,
    /// Powers of two. The scale is the smallest one for which no value exceeds the largest code.
    #[serde(rename = "e8m0_ceil")]
    PowerAbove,
}

impl ScaleType {
    /// Types of scales that are powers of two.
    pub(crate) const POWERS: [Self; 3] = [ScaleType::Power, ScaleType::PowerBelow, ScaleType::PowerAbove];

    /// Returns the scale type of an engine whose results have this type.
    pub(crate) fn of(results: DType) -> Self {
        match results {
            DType::BF16 => ScaleType::Bf16,
            DType::F16 => ScaleType::F16,
            _ => ScaleType::F32,
        }
    }

    /// Returns true if scales are powers of two.
    pub fn is_power(self) -> bool {
        Self::POWERS.contains(&self)
    }

    pub(crate) fn round(self, value: f32) -> f32 {
        match self {
            ScaleType::F32 | ScaleType::Power | ScaleType::PowerBelow | ScaleType::PowerAbove => value,
            ScaleType::F16 => f16::from_f32(value).to_f32(),
            ScaleType::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// Rounds an `f64` value once; for `F32` scales, the value keeps its digits.
    pub(super) fn round_wide(self, value: f64) -> f64 {
        match self {
            ScaleType::F16 => f16::from_f64(value).to_f64(),
            ScaleType::Bf16 => bf16::from_f64(value).to_f64(),
            _ => value,
        }
    }

    /// Returns the power of two that scales a group of floats up to `largest`; `None` for other types.
    pub(super) fn power(self, of_group: f32, largest: f32) -> Option<f32> {
        if !of_group.is_finite() {
            return Some(of_group);
        }
        let (value, carried) = match self {
            // The added bits carry to the exponent from 1.75 on.
            ScaleType::Power => (of_group, 1 << 21),
            // They never carry.
            ScaleType::PowerBelow => (of_group, 0),
            // They carry unless the value is a power of two.
            ScaleType::PowerAbove => (of_group / largest, (1 << 23) - 1),
            _ => return None,
        };
        let exponent = ((value.to_bits() + carried) >> 23) as f32 - 127.0;
        let of_largest = if self == ScaleType::PowerAbove { 0.0 } else { largest.log2().floor() };
        Some(if of_group == 0.0 { 0.0 } else { (exponent - of_largest).clamp(-127.0, 127.0).exp2() })
    }
}

/// Smallest power of two that a group is scaled by, 2⁻¹²⁷.
pub(super) const LEAST_POWER: f32 = f32::from_bits(1 << 22);

/// Smallest normal number of `f16`, 2⁻¹⁴.
pub(super) const LEAST_F16: f32 = 1.0 / 16384.0;

/// Scales of groups that are multiplied by a number of the matrix and then stored as 8-bit floats (NVFP4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalScales {
    /// Number that scales are multiplied by before they are stored.
    pub global: f32,
    /// False if the scales are not rounded to 8 bits, which is a known fault.
    pub are_rounded: bool,
}

impl LocalScales {
    /// Returns a scale multiplied by the matrix's number, as it is stored.
    pub(super) fn stored(&self, scale: f32) -> f32 {
        let whole = scale * self.global;
        if self.are_rounded { round_to_small_float(whole, 3, -6, LARGEST_E4M3) } else { whole }
    }

    /// Returns the scale that products use: the stored scale divided by the matrix's number.
    pub(super) fn used(&self, stored: f32) -> f32 {
        stored / self.global
    }

    /// Returns all numbers between `least` and `most` that a stored scale can have, in ascending order. Some engines
    /// store the smallest positive scale in place of 0.
    pub(super) fn between(&self, least: f32, most: f32) -> Vec<f32> {
        let most = if least == 0.0 { most.max(LEAST_E4M3) } else { most };
        let next = |&scale: &f32| Some(scale + step_at(scale, 3, -6)).filter(|&next| next <= most);
        std::iter::successors(Some(least), next).collect()
    }
}

/// Smallest positive number of 8-bit floats with four exponent bits, 2⁻⁹.
const LEAST_E4M3: f32 = 1.0 / 512.0;

/// Largest number of 8-bit floats with four exponent bits.
pub(super) const LARGEST_E4M3: f32 = 448.0;

/// Rounds to a float of 8 bits or fewer, ties to even. `bits` is the number of fraction bits, `least` the exponent of
/// the smallest normal number, and `largest` the largest number.
pub(crate) fn round_to_small_float(value: f32, bits: i32, least: i32, largest: f32) -> f32 {
    let step = step_at(value, bits, least);
    (nearest_whole((value / step).into()) as f32 * step).clamp(-largest, largest)
}

/// Returns the distance of neighbouring floats of few bits near a value.
fn step_at(value: f32, bits: i32, least: i32) -> f32 {
    let exponent = (value.to_bits() >> 23 & 0xff) as i32 - 127;
    // A power of two.
    f32::from_bits(((exponent.max(least) - bits + 127) as u32) << 23)
}
