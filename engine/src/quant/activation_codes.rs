//! Quantisation of activations to 8-bit integers, or floats of 8 or 4 bits, with one scale for each group of values.

use half::f16;
use serde::{Deserialize, Serialize};

use super::group_scales::{
    LARGEST_E4M3, LEAST_F16, LEAST_POWER, LocalScales, ScaleType, round_to_small_float,
};
use super::nearest_whole;
use crate::weight::{InputCodes, InputScale, Matrix};

/// Activations that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodeGroup {
    /// This many neighbouring values of a token.
    Values(usize),
    /// All values of one token.
    Token,
    /// All values of all tokens of a pass.
    Pass,
    /// The values that the file states for the matrix: all values of all passes, which share a stored scale, or groups
    /// of values. Activations of other matrices are not quantised.
    Matrix,
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
    /// 4-bit floats with two exponent bits, up to 6.
    F4E2m1,
}

impl ActivationCodeType {
    /// Returns the type of the codes of a format.
    fn of(input: &InputScale) -> Self {
        match input.codes {
            InputCodes::Int8 | InputCodes::Int8Groups => ActivationCodeType::Int8,
            InputCodes::Nvfp4 | InputCodes::Mxfp4 => ActivationCodeType::F4E2m1,
            InputCodes::Float8 | InputCodes::Float8Groups | InputCodes::Mxfp8 => ActivationCodeType::F8E4m3,
        }
    }

    /// Returns the largest number of a float type; `None` for integers.
    fn largest_float(self) -> Option<f32> {
        match self {
            ActivationCodeType::Int8 => None,
            ActivationCodeType::F8E4m3 => Some(LARGEST_E4M3),
            ActivationCodeType::F4E2m1 => Some(6.0),
        }
    }
}

/// Quantisation of activations to 8-bit or 4-bit codes, before products with weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActivationCodes {
    /// Values that share a scale.
    pub group: CodeGroup,
    /// Type of the codes.
    pub codes: ActivationCodeType,
    /// Type of the scale. For NVFP4: type of the scale before it is stored in 8 bits.
    pub scale: ScaleType,
    /// Type that quotients and decoded values are rounded to. For NVFP4: type of decoded values.
    pub quotients: ScaleType,
    /// Type that decoded values are rounded to; `None` for the type of quotients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<ScaleType>,
    /// Largest value of a group divided by its scale: 127, 127.5 or 128. Unused for floats and if `asymmetric`.
    pub largest: f32,
    /// True for codes from 0 to 255 with a zero point, which cover a group from its smallest value to its largest.
    pub asymmetric: bool,
    /// Products with this number of outputs do not quantise their activations; 0 for none. Set to the vocabulary's size
    /// for models with an unquantised head.
    pub whole_for: usize,
    /// Threshold of outliers; 0 for none. A column with a value of at least this size is not quantised, in all tokens
    /// of a pass. Values are rounded to `f16` before the comparison, as in LLM.int8(). Applies only to matrices whose
    /// file states a threshold.
    pub outliers: f32,
    /// Scales of groups relative to a number of the matrix; `None` for other codes, and before the matrix is known.
    #[serde(skip)]
    pub local: Option<LocalScales>,
}

/// Returns the settings of ONNX Runtime's MatMulNBits at its default accuracy level.
impl Default for ActivationCodes {
    fn default() -> Self {
        Self {
            group: CodeGroup::Values(32),
            codes: ActivationCodeType::Int8,
            scale: ScaleType::F32,
            quotients: ScaleType::F32,
            values: None,
            largest: 127.0,
            asymmetric: false,
            whole_for: 0,
            outliers: 0.0,
            local: None,
        }
    }
}

impl ActivationCodes {
    /// Returns a message if the settings are invalid.
    pub fn problem(&self) -> Option<&'static str> {
        match self {
            Self { group: CodeGroup::Values(0), .. } => {
                Some("activation_codes: a group of 0 values, expected at least 1")
            }
            Self { codes, asymmetric: true, .. } if codes.largest_float().is_some() => {
                Some("activation_codes: asymmetric is true, expected false for floating-point codes")
            }
            Self { group: CodeGroup::Matrix, asymmetric: true, .. } => Some(
                "activation_codes: asymmetric is true, expected false: the file states the zero points of \"matrix\"",
            ),
            // The codes of a matrix are read from its file.
            Self { codes: ActivationCodeType::Int8, scale, group, .. }
                if scale.is_power() && *group != CodeGroup::Matrix =>
            {
                Some("activation_codes: scale is a power of two, expected another type for integer codes")
            }
            Self { quotients, values, .. }
                if quotients.is_power() || values.is_some_and(ScaleType::is_power) =>
            {
                Some(
                    "activation_codes: quotients or values is a power of two, expected \"f32\", \"f16\" or \"bf16\"",
                )
            }
            Self { outliers, .. } if !(*outliers >= 0.0) => {
                Some("activation_codes: outliers is negative or NaN, expected 0 or more")
            }
            Self { largest, .. } if !(100.0..=128.0).contains(largest) => {
                Some("activation_codes: largest is out of range, expected 100 to 128")
            }
            _ => None,
        }
    }

    /// Returns codes whose scale is stored with a matrix.
    pub fn of_matrix(input: &InputScale) -> Self {
        Self { group: CodeGroup::Matrix, codes: ActivationCodeType::of(input), ..Self::default() }
    }

    /// Returns the activation codes for products with a matrix; `None` if these products do not quantise activations.
    pub(crate) fn of_product(&self, w: &Matrix) -> Option<Self> {
        let codes = match self.group {
            CodeGroup::Matrix => w.input_scale().map(|input| self.with_scale(&input)),
            _ => Some(*self).filter(|codes| codes.outliers == 0.0 || w.outliers().is_some()),
        };
        codes.filter(|codes| codes.whole_for != w.rows)
    }

    /// Returns codes that use a stored scale, or that have the groups which the scale's format defines.
    pub(crate) fn with_scale(&self, input: &InputScale) -> Self {
        let codes = ActivationCodeType::of(input);
        match input.codes {
            InputCodes::Nvfp4 => {
                let local = Some(LocalScales { global: input.number, are_rounded: true });
                let scale = if self.scale.is_power() { ScaleType::F32 } else { self.scale };
                Self { group: CodeGroup::Values(16), codes, scale, local, ..*self }
            }
            InputCodes::Mxfp4 | InputCodes::Mxfp8 => {
                let scale = if self.scale.is_power() { self.scale } else { ScaleType::Power };
                Self { group: CodeGroup::Values(32), codes, scale, ..*self }
            }
            InputCodes::Int8 | InputCodes::Float8 => Self { codes, ..*self },
            InputCodes::Int8Groups | InputCodes::Float8Groups => {
                let group = match input.number {
                    0.0 => CodeGroup::Token,
                    len => CodeGroup::Values(len as usize),
                };
                let scale = if self.scale.is_power() { ScaleType::F32 } else { self.scale };
                Self { group, codes, scale, ..*self }
            }
        }
    }

    /// Returns codes that use the scales of groups as they are computed, in single precision.
    pub(crate) fn without_stored_scales(&self) -> Self {
        let local = self.local.map(|local| LocalScales { are_rounded: false, ..local });
        let scale = if self.scale.is_power() { ScaleType::F32 } else { self.scale };
        Self { local, scale, ..*self }
    }

    /// Returns true if scales are stored with the matrices.
    pub fn are_stored(&self) -> bool {
        self.group == CodeGroup::Matrix
    }

    /// Returns the distance between the values of neighbouring codes, as stored with a matrix, and the zero point.
    pub(crate) fn stored(&self, input: &InputScale) -> (f32, f32) {
        (self.scale.round(input.number), input.zero)
    }

    /// Returns the smallest and the largest code for a stored zero point. Codes are counted from the zero point.
    pub(crate) fn ends_around(&self, zero: f32) -> (f32, f32) {
        match self.codes.largest_float() {
            None => (-128.0 - zero, 127.0 - zero),
            Some(largest) => (-largest, largest),
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

    /// Returns the distance between the values of neighbouring codes, for a group with values from `low` to `high`,
    /// where `low` ≤ 0 ≤ `high`.
    pub(crate) fn step(&self, low: f32, high: f32) -> f32 {
        let scale = self.scale(low, high);
        self.local.map_or(scale, |local| local.used(local.stored(scale)))
    }

    /// Returns the scale of a group with values from `low` to `high`, before it is stored in 8 bits.
    fn scale(&self, low: f32, high: f32) -> f32 {
        let most = high.max(-low);
        let step = match (self.codes.largest_float(), self.asymmetric) {
            (Some(largest), _) => match self.scale.power(most, largest) {
                Some(_) if self.loses_small_powers() && most < LEAST_F16 => return 0.0,
                Some(power) => return power,
                None => most / largest,
            },
            (None, true) => (high - low) / 255.0,
            (None, false) => most / self.largest,
        };
        self.scale.round(step)
    }

    /// Returns all possible steps of groups whose largest absolute value is between `least` and `most`: at most one for
    /// each exponent or 8-bit scale. `None` for scales of other types, and if a value may be infinite.
    pub(crate) fn few_steps(&self, least: f32, most: f32) -> Option<Vec<f32>> {
        let [least, most] = [least, most].map(|most| self.scale(0.0, most));
        if !most.is_finite() {
            return None;
        }
        if let Some(local) = self.local.filter(|local| local.are_rounded) {
            let [least, most] = [least, most].map(|scale| local.stored(scale));
            return Some(local.between(least, most).into_iter().map(|scale| local.used(scale)).collect());
        }
        let half = |&step: &f32| Some(step / 2.0).filter(|&half| half >= least.max(LEAST_POWER));
        let lost = Some(0.0).filter(|_| least == 0.0 && most > 0.0 && self.loses_small_powers());
        let powers = || std::iter::successors(Some(most), half).chain(lost).collect();
        self.scale.is_power().then(powers)
    }

    /// Returns true if all codes of a group are 0 when its largest value is below the normal numbers of `f16`, because
    /// compressed-tensors computes the group's power of two in `f16`.
    fn loses_small_powers(&self) -> bool {
        self.scale == ScaleType::Power && self.values == Some(ScaleType::F16)
    }

    /// Returns true if all codes of a group with scale 0 are 0.
    pub(crate) fn has_zero_groups(&self) -> bool {
        self.local.is_some() || self.scale.is_power()
    }

    /// Returns the code nearest to a value divided by its scale, limited to the codes from `least` to `most`. The
    /// quotient is rounded first.
    pub fn nearest(&self, quotient: f64, ends: (f32, f32)) -> f64 {
        self.nearest_around(0.0, quotient, ends)
    }

    /// Returns the code nearest to a value, counted from the zero point. The zero point is added to the rounded
    /// quotient, and the sum is rounded to a code. Ties therefore go to even codes, not to even distances from the zero
    /// point.
    pub(crate) fn nearest_around(&self, zero: f32, quotient: f64, (least, most): (f32, f32)) -> f64 {
        let zero = f64::from(zero);
        let quotient = if self.local.is_some() { quotient } else { self.quotients.round_wide(quotient) };
        let sum = if zero == 0.0 { quotient } else { self.quotients.round_wide(quotient + zero) };
        let code = match self.codes {
            ActivationCodeType::Int8 => nearest_whole(sum),
            ActivationCodeType::F8E4m3 => round_to_small_float(sum as f32, 3, -6, LARGEST_E4M3).into(),
            ActivationCodeType::F4E2m1 => round_to_small_float(sum as f32, 1, 0, 6.0).into(),
        };
        (code - zero).clamp(least.into(), most.into())
    }

    pub(crate) fn decoded(&self, code: f64, step: f64) -> f64 {
        self.values.unwrap_or(self.quotients).round_wide(code * step)
    }

    /// Returns the smallest and the largest code, counted from the zero point, in a group whose smallest value is
    /// `low`.
    pub(crate) fn ends(&self, low: f32, step: f32) -> (f32, f32) {
        match self.codes {
            ActivationCodeType::Int8 if self.asymmetric => {
                let zero = (-low / step).round_ties_even().clamp(0.0, 255.0);
                (-zero, 255.0 - zero)
            }
            _ => self.ends_around(0.0),
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

    /// Quantises rows of `width` values except columns with outliers. Returns two arrays: the quantised columns and the
    /// columns with outliers, with zeros in place of the other columns.
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
        match step > 0.0 && step.is_finite() {
            true => self.round_by(values, step, 0.0, self.ends(low, step)),
            false if step == 0.0 && self.has_zero_groups() => {
                values.iter_mut().filter(|value| value.is_finite()).for_each(|value| *value = 0.0)
            }
            false => {}
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
