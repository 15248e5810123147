//! Floating-point types that values are rounded to.

use serde::{Deserialize, Serialize};

use crate::weight::DType;

/// Half the spacing of `f32` at 1.
pub(crate) const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Constant whose addition rounds an `f64` to an integer, because neighbouring `f64` numbers near it differ by 1.
const WHOLE: f64 = 1.5 * (1u64 << 52) as f64;

/// A type that values are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Float {
    /// `f32` with 24 significant bits. Rounding to it changes no value that was computed in `f32`.
    F32,
    /// TF32: 11 significant bits with the range of `f32`, as matrix units use it. Rounds to nearest, ties to even.
    Tf32,
    /// TF32 with ties away from zero: NVIDIA's `cvt.rna.tf32.f32`.
    #[serde(skip)]
    Tf32Away,
    /// TF32 by truncation, as NVIDIA's units do with operands that were not rounded before.
    #[serde(skip)]
    Tf32Cut,
    /// `f16`: 11 significant bits.
    F16,
    /// `bf16`: 8 significant bits.
    Bf16,
    /// 8-bit float with 4 significant bits, without infinity. A storage type only; profiles do not use it.
    #[serde(skip)]
    E4m3,
    /// 8-bit float with 3 significant bits. A storage type only; profiles do not use it.
    #[serde(skip)]
    E5m2,
}

impl Float {
    /// Returns the type for an element type of a file; `None` for integers, block types and other floats.
    pub fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Float::F32),
            DType::F16 => Some(Float::F16),
            DType::BF16 => Some(Float::Bf16),
            DType::F8_E4M3 => Some(Float::E4m3),
            DType::F8_E5M2 => Some(Float::E5m2),
            _ => None,
        }
    }

    /// Returns the name used in a manifest.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Float::F32 => "f32",
            Float::Tf32 => "tf32",
            Float::Tf32Away => "tf32-away",
            Float::Tf32Cut => "tf32-cut",
            Float::F16 => "f16",
            Float::Bf16 => "bf16",
            Float::E4m3 => "f8_e4m3",
            Float::E5m2 => "f8_e5m2",
        }
    }

    /// Returns the largest relative error of one rounding.
    pub(crate) fn unit(self) -> f64 {
        match self {
            Float::F32 => U,
            Float::Tf32 | Float::Tf32Away | Float::F16 => 1.0 / 2048.0,
            Float::Tf32Cut => 1.0 / 1024.0,
            Float::Bf16 => 1.0 / 256.0,
            Float::E4m3 => 1.0 / 16.0,
            Float::E5m2 => 1.0 / 8.0,
        }
    }

    /// Returns the smallest normal number.
    #[inline]
    pub(crate) fn least(self) -> f64 {
        power_of_two(self.format().1)
    }

    /// Returns the number of significant bits, and the exponents of the smallest normal and of the largest number.
    #[inline]
    fn format(self) -> (i32, i32, i32) {
        match self {
            Float::F32 => (24, -126, 127),
            Float::Tf32 | Float::Tf32Away | Float::Tf32Cut => (11, -126, 127),
            Float::F16 => (11, -14, 15),
            Float::Bf16 => (8, -126, 127),
            Float::E4m3 => (4, -6, 8),
            Float::E5m2 => (3, -14, 15),
        }
    }

    /// Returns the number that would follow the largest finite one. The last bit pattern of E4M3 is NaN.
    #[inline]
    fn beyond(self) -> f64 {
        match self {
            Float::E4m3 => 480.0,
            _ => power_of_two(self.format().2 + 1),
        }
    }

    /// Returns the distance between neighbouring numbers of this type at a value.
    #[inline]
    pub(crate) fn step(self, value: f64) -> f64 {
        const EXPONENT: u64 = 0x7FF << 52;
        let power = f64::from_bits(value.to_bits() & EXPONENT);
        power.max(self.least()) * power_of_two(1 - self.format().0)
    }

    /// Rounds a value to this type, ties to even unless the variant's documentation says otherwise. The crate `half` is
    /// not used, because it drops bits of an `f64` before it checks for ties.
    #[inline]
    pub fn round(self, value: f64) -> f64 {
        let step = self.step(value);
        let rounded = match self {
            Float::Tf32Away => step * (value / step).round(),
            Float::Tf32Cut => step * (value / step).trunc(),
            // Adding and subtracting a large number leaves a multiple of the step.
            _ => ((value + step * WHOLE) - step * WHOLE).copysign(value),
        };
        if rounded.abs() < self.beyond() || value.is_nan() { rounded } else { f64::INFINITY.copysign(value) }
    }

    /// Returns the interval of numbers that round to `value`. The interval is only `value` itself if this type is
    /// `f32`, or if `value` is not a finite number of this type.
    #[inline]
    pub(crate) fn cell(self, value: f64) -> (f64, f64) {
        if self == Float::F32 || !value.is_finite() || self.round(value) != value {
            return (value, value);
        }
        let step = self.step(value);
        // Below a power of two, numbers are closer to each other.
        let inward = self.step(value.abs() - step / 2.0);
        let (low, high) = (value.abs() - inward / 2.0, value.abs() + step / 2.0);
        if value < 0.0 { (-high, -low) } else { (low, high) }
    }

    /// Returns true if storing a number of type `computed` in this type may lose significant bits, or small numbers.
    pub fn loses(self, computed: Float) -> bool {
        self.unit() > computed.unit() || self.least() > computed.least()
    }

    /// Returns true if numbers of this type are further apart at a value than numbers of type `computed`.
    pub(crate) fn is_coarser_at(self, value: f64, computed: Float) -> bool {
        self.is_eighth() || self.step(value) > computed.step(value)
    }

    /// Returns true for an 8-bit type.
    pub(crate) fn is_eighth(self) -> bool {
        matches!(self, Float::E4m3 | Float::E5m2)
    }

    /// Returns true if `number`, divided by `scale` and rounded to this type, may be stored as `value`.
    pub(crate) fn may_store(self, number: f64, value: f64, scale: f64) -> bool {
        let (low, high) = self.cell(value / scale);
        (low * scale..=high * scale).contains(&number)
    }

    /// Returns the interval of numbers that an engine stores as `value`: it computes them in type `computed`, divides
    /// them by `scale`, and rounds them to this coarser type. Rounding to `computed` may move a number across the end
    /// of the interval, so the interval is wider than [`Float::cell`].
    pub(crate) fn stored_cell(self, value: f64, scale: f64, computed: Float) -> (f64, f64) {
        let (low, high) = self.cell(value / scale);
        if low == high || !value.is_finite() {
            return (value, value);
        }
        // Half steps of the computed type: one for the result, and up to two for the scale's reciprocal and its
        // product.
        let before = match computed {
            _ if self.is_eighth() => 4.0,
            Float::F32 => 0.0,
            _ => 1.0,
        };
        let around = |end: f64| before * computed.step(end) / 2.0;
        let (low, high) = (low * scale, high * scale);
        (low - around(low), high + around(high))
    }
}

#[inline]
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
