//! Quantisation of activations to 8-bit integers or floats, with one scale for each group of values.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::nearest_whole;
use crate::weight::{DType, InputScale, Matrix};

/// Group of values that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodeGroup {
    /// This many neighbouring values of a token.
    Values(usize),
    /// All values of a token.
    Token,
    /// All values of all tokens of a pass.
    Pass,
    /// All values of all passes: the scale is stored with the matrix. Activations of matrices without a stored scale
    /// are not quantised.
    Matrix,
}

/// Type of the scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaleType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
}

/// Type of the codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationCodeType {
    /// 8-bit integers.
    #[default]
    Int8,
    /// 8-bit floats with four exponent bits, up to 448.
    F8E4m3,
}

/// Largest number of [`ActivationCodeType::F8E4m3`].
const LARGEST_F8: f32 = 448.0;

/// Quantisation of activations to 8-bit codes, before products with weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActivationCodes {
    /// Values that share a scale.
    pub group: CodeGroup,
    /// Type of the codes.
    pub codes: ActivationCodeType,
    /// Type of the scale.
    pub scale: ScaleType,
    /// Type that quotients and decoded values are rounded to.
    pub quotients: ScaleType,
    /// Largest value of a group divided by its scale: 127, 127.5 or 128. Unused for floats and if `asymmetric`.
    pub largest: f32,
    /// True for codes from 0 to 255 with a zero point, which cover a group from its smallest value to its largest.
    pub asymmetric: bool,
    /// Number of outputs of the products whose activations are not quantised; 0 for none. Set to the vocabulary's size
    /// for models with an unquantised head.
    pub whole_for: usize,
    /// Smallest absolute value whose column is not quantised, in all tokens of a pass; 0 for none. Values are rounded to
    /// `f16` first, as in LLM.int8(). Only applies to matrices whose file states a threshold.
    pub outliers: f32,
}

/// Returns the settings of ONNX Runtime's MatMulNBits at its default accuracy level.
impl Default for ActivationCodes {
    fn default() -> Self {
        Self {
            group: CodeGroup::Values(32),
            codes: ActivationCodeType::Int8,
            scale: ScaleType::F32,
            quotients: ScaleType::F32,
            largest: 127.0,
            asymmetric: false,
            whole_for: 0,
            outliers: 0.0,
        }
    }
}

impl ScaleType {
    pub(crate) fn round(self, value: f32) -> f32 {
        match self {
            ScaleType::F32 => value,
            ScaleType::F16 => f16::from_f32(value).to_f32(),
            ScaleType::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// Rounds a value with more digits once; values of `F32` keep their digits.
    fn round_wide(self, value: f64) -> f64 {
        match self {
            ScaleType::F32 => value,
            ScaleType::F16 => f16::from_f64(value).to_f64(),
            ScaleType::Bf16 => bf16::from_f64(value).to_f64(),
        }
    }
}

/// Rounds to an 8-bit float, ties to even. `bits` is the number of fraction bits, `least` the exponent of the smallest
/// normal number, and `largest` the largest number.
pub fn round_to_eighth(value: f32, bits: i32, least: i32, largest: f32) -> f32 {
    let exponent = (value.to_bits() >> 23 & 0xff) as i32 - 127;
    // A power of two.
    let step = f32::from_bits(((exponent.max(least) - bits + 127) as u32) << 23);
    (nearest_whole((value / step).into()) as f32 * step).clamp(-largest, largest)
}

impl ActivationCodes {
    /// Returns a message if the settings are invalid.
    pub fn problem(&self) -> Option<&'static str> {
        match self {
            Self { group: CodeGroup::Values(0), .. } => {
                Some("activation_codes: a group has at least one value")
            }
            Self { codes: ActivationCodeType::F8E4m3, asymmetric: true, .. } => {
                Some("activation_codes: floats are not asymmetric")
            }
            Self { outliers, .. } if !(*outliers >= 0.0) => Some("activation_codes: outliers is 0 or more"),
            Self { largest, .. } if !(100.0..=128.0).contains(largest) => {
                Some("activation_codes: largest is from 100 to 128")
            }
            _ => None,
        }
    }

    /// Returns codes whose scale is stored with a matrix.
    pub fn of_matrix(input: &InputScale) -> Self {
        let codes = match input.codes {
            DType::I8 => ActivationCodeType::Int8,
            _ => ActivationCodeType::F8E4m3,
        };
        Self { group: CodeGroup::Matrix, codes, ..Self::default() }
    }

    /// Returns true if scales are stored with the matrices.
    pub fn are_stored(&self) -> bool {
        self.group == CodeGroup::Matrix
    }

    /// Returns true if the activations of products with this matrix are quantised.
    pub(crate) fn apply_to(&self, w: &Matrix) -> bool {
        let is_stated = match self.group {
            CodeGroup::Matrix => w.input_scale().is_some(),
            _ => self.outliers == 0.0 || w.outliers().is_some(),
        };
        is_stated && w.rows != self.whole_for
    }

    /// Returns the distance between neighbouring codes' values that a matrix stores, and the zero point.
    pub(crate) fn stored(&self, input: &InputScale) -> (f32, f32) {
        (self.scale.round(input.step), input.zero)
    }

    /// Returns the smallest and the largest code, relative to the code of zero, for a stored zero point.
    pub(crate) fn ends_around(&self, zero: f32) -> (f32, f32) {
        match self.codes {
            ActivationCodeType::Int8 => (-128.0 - zero, 127.0 - zero),
            ActivationCodeType::F8E4m3 => (-LARGEST_F8, LARGEST_F8),
        }
    }

    /// Returns the number of neighbouring values that share a scale, for `rows` rows of `width` values.
    pub(crate) fn group_len(&self, width: usize, rows: usize) -> usize {
        match self.group {
            CodeGroup::Values(len) => len,
            CodeGroup::Token => width,
            CodeGroup::Pass | CodeGroup::Matrix => width * rows,
        }
    }

    /// Returns the distance between neighbouring codes' values, in a group from `low` to `high`, with `low` ≤ 0 ≤
    /// `high`.
    pub(crate) fn step(&self, low: f32, high: f32) -> f32 {
        let step = match (self.codes, self.asymmetric) {
            (ActivationCodeType::F8E4m3, _) => high.max(-low) / LARGEST_F8,
            (ActivationCodeType::Int8, true) => (high - low) / 255.0,
            (ActivationCodeType::Int8, false) => high.max(-low) / self.largest,
        };
        self.scale.round(step)
    }

    /// Returns the code nearest to a value divided by its scale, from `least` to `most`. The quotient is rounded first.
    pub fn nearest(&self, quotient: f64, ends: (f32, f32)) -> f64 {
        self.nearest_around(0.0, quotient, ends)
    }

    /// Returns the nearest code, relative to the code of zero. The zero point is added to the rounded quotient, and the sum is
    /// rounded to a code: ties go to even codes, not to even distances from the zero point.
    pub(crate) fn nearest_around(&self, zero: f32, quotient: f64, (least, most): (f32, f32)) -> f64 {
        let zero = f64::from(zero);
        let quotient = self.quotients.round_wide(quotient);
        let sum = if zero == 0.0 { quotient } else { self.quotients.round_wide(quotient + zero) };
        let code = match self.codes {
            ActivationCodeType::Int8 => nearest_whole(sum),
            ActivationCodeType::F8E4m3 => round_to_eighth(sum as f32, 3, -6, LARGEST_F8).into(),
        };
        (code - zero).clamp(least.into(), most.into())
    }

    pub(crate) fn decoded(&self, code: f64, step: f64) -> f64 {
        self.quotients.round_wide(code * step)
    }

    /// Returns the smallest and the largest code, relative to the code of zero, in a group whose smallest value is
    /// `low`.
    pub(crate) fn ends(&self, low: f32, step: f32) -> (f32, f32) {
        match self.asymmetric {
            _ if self.codes == ActivationCodeType::F8E4m3 => (-LARGEST_F8, LARGEST_F8),
            true => {
                let zero = (-low / step).round_ties_even().clamp(0.0, 255.0);
                (-zero, 255.0 - zero)
            }
            false => (-128.0, 127.0),
        }
    }

    /// Returns codes of a matrix whose file states a threshold of outliers.
    pub fn with_outliers(threshold: f32) -> Self {
        Self { group: CodeGroup::Token, outliers: threshold, ..Self::default() }
    }

    /// Returns true for each column with an outlier in a row; `None` if outliers are quantised.
    pub(crate) fn outlier_columns<'r>(
        &self,
        rows: impl Iterator<Item = &'r [f32]>,
        width: usize,
    ) -> Option<Vec<bool>> {
        (self.outliers > 0.0).then(|| {
            let mut columns = vec![false; width];
            for row in rows {
                columns.iter_mut().zip(row).for_each(|(column, &value)| *column |= self.is_outlier(value));
            }
            columns
        })
    }

    /// Returns true if a value, rounded to `f16`, reaches the threshold of outliers.
    pub fn is_outlier(&self, value: f32) -> bool {
        f16::from_f32(value.abs()).to_f32() >= self.outliers
    }

    /// Quantises rows of `width` values except columns with outliers. Returns both parts, with zeros for each other's
    /// columns.
    pub(crate) fn split_outliers(&self, values: &[f32], width: usize, columns: &[bool]) -> [Vec<f32>; 2] {
        let whole = |(at, &value): (usize, &f32)| if columns[at % width] { value } else { 0.0 };
        let outliers = values.iter().enumerate().map(whole).collect();
        let without = |&value: &f32| if self.is_outlier(value) { 0.0 } else { value };
        let mut codes: Vec<f32> =
            values.iter().map(without).map(|value| f16::from_f32(value).to_f32()).collect();
        self.round(&mut codes, width);
        codes.iter_mut().enumerate().filter(|(at, _)| columns[at % width]).for_each(|(_, code)| *code = 0.0);
        [codes, outliers]
    }

    /// Quantises and decodes each value. `values` has whole rows of `width` values.
    pub(crate) fn round(&self, values: &mut [f32], width: usize) {
        let rows = values.len() / width.max(1);
        let group = self.group_len(width, rows).max(1);
        if self.group == CodeGroup::Pass {
            return self.round_group(values);
        }
        values
            .chunks_mut(width.max(1))
            .flat_map(|row| row.chunks_mut(group))
            .for_each(|group| self.round_group(group));
    }

    fn round_group(&self, values: &mut [f32]) {
        let (low, high) = extent(values.iter().copied());
        let step = self.step(low, high);
        if step > 0.0 && step.is_finite() {
            self.round_by(values, step, 0.0, self.ends(low, step));
        }
    }

    /// Quantises and decodes each value by a stored scale.
    pub(crate) fn round_stored(&self, values: &mut [f32], input: &InputScale) {
        let (step, zero) = self.stored(input);
        self.round_by(values, step, zero, self.ends_around(zero));
    }

    fn round_by(&self, values: &mut [f32], step: f32, zero: f32, ends: (f32, f32)) {
        for value in values {
            let code = self.nearest_around(zero, (*value / step).into(), ends);
            *value = self.decoded(code, step.into()) as f32;
        }
    }
}

/// Returns the smallest and the largest of the values and zero.
pub fn extent(values: impl Iterator<Item = f32>) -> (f32, f32) {
    values.fold((0.0, 0.0), |(low, high), value| (low.min(value), high.max(value)))
}
