//! Activations, rounded or quantised for the product with weights.

use crate::exact::float::Float;
use crate::exact::input::InputValues;
use crate::exact::profile::{Operands, Profile};
use crate::exact::value::{ExactValue, U};
use crate::quant::{self, ActivationCodes, ActivationRow, known, quantise_row};
use crate::weight::{DType, InputScale};

/// A row of activations, rounded as the product requires.
#[derive(Debug)]
pub(crate) struct Operand {
    pub(crate) row: InputValues,
    /// Differences between the stored sums of blocks of 32 and the sums of their values, if a format stores sums.
    pub(crate) surplus: Option<Vec<f64>>,
    /// True if the row is made of codes, which are multiplied and added as integers within a block.
    pub(crate) is_coded: bool,
    /// Second number of each value, if values are split into two numbers.
    pub(crate) low: Option<Vec<f64>>,
    /// Columns with outliers, which are not quantised; their codes are zero.
    pub(crate) outliers: Option<OutlierColumns>,
}

/// Values of a row in the columns with outliers.
#[derive(Debug)]
pub(crate) struct OutlierColumns {
    pub(crate) columns: Vec<usize>,
    pub(crate) values: InputValues,
}

/// Returns the type that activations are rounded to before products with weights of a type.
pub(crate) fn operand_type(profile: &Profile, weights: DType) -> DType {
    match profile.operands {
        Operands::Ggml | Operands::GgmlButF16 => match quant::activation_type(weights) {
            DType::F16 if profile.operands == Operands::GgmlButF16 => DType::F32,
            dtype => dtype,
        },
        _ => DType::F32,
    }
}

/// Splits a value into two numbers of type `half`.
pub(crate) fn split(x: f64, half: Float) -> (f64, f64) {
    let high = half.round(x);
    (high, half.round(x - high))
}

impl Operand {
    /// Creates an operand. `shared` is the range of all values of the pass, or the scale stored with the matrix, for
    /// codes that depend on it.
    pub(crate) fn new(
        row: InputValues,
        profile: &Profile,
        weights: DType,
        shared: Option<CodeRange>,
    ) -> Self {
        if let Some(codes) = &profile.activation_codes {
            return Self::plain(integers(&row, codes, shared));
        }
        let dtype = operand_type(profile, weights);
        if let Some(float) = Float::of(dtype) {
            if let Some(half) = profile.operands.split() {
                let parts: Vec<(f64, f64)> = row.values.iter().map(|&x| split(x, half)).collect();
                let whole = row.values.iter().zip(&parts).map(|(x, (high, low))| high + low - x);
                let off: Vec<f64> = whole.collect();
                let row = InputValues::new((0..row.len()).map(|at| {
                    let x = row.get(at);
                    ExactValue { value: x.value + off[at], ..x }
                }));
                return Self {
                    row,
                    surplus: None,
                    is_coded: false,
                    low: Some(parts.iter().map(|part| part.1).collect()),
                    outliers: None,
                };
            }
            let unit = if float == Float::F32 { profile.unit_of_products() } else { float };
            let row = if unit == Float::F32 { row } else { row.map(|x| x.rounded(unit)) };
            return Self::plain(row);
        }
        Self::coded(&row, dtype)
    }

    /// Wraps a row without quantisation.
    pub(crate) fn plain(row: InputValues) -> Self {
        Self { row, surplus: None, is_coded: false, low: None, outliers: None }
    }

    /// Quantises a row except the columns with outliers.
    pub(crate) fn with_outliers(row: &InputValues, codes: &ActivationCodes, columns: &[bool]) -> Self {
        let none = ExactValue::sure(0.0);
        let is_outlier = |x: ExactValue| codes.is_outlier(x.value as f32);
        let short = row.map(|x| if is_outlier(x) { none } else { x.rounded(Float::F16) });
        let short = integers(&short, codes, None);
        let code = |at: usize| if columns[at] { none } else { short.get(at) };
        let codes = InputValues::new((0..columns.len()).map(code));
        let columns: Vec<usize> = (0..columns.len()).filter(|&at| columns[at]).collect();
        let values = InputValues::new(columns.iter().map(|&at| row.get(at)));
        Self { outliers: Some(OutlierColumns { columns, values }), ..Self::plain(codes) }
    }

    /// Quantises a row to a block type.
    pub(crate) fn coded(row: &InputValues, dtype: DType) -> Self {
        let values: Vec<f32> = row.values.iter().map(|&x| x as f32).collect();
        let mut bytes = vec![0; dtype.bytes_for(values.len()).expect("the row is a whole number of blocks")];
        quantise_row(dtype, &values, &mut bytes);
        let known = known(dtype, &bytes).expect("a type that is not floating-point has integer codes");
        let block = dtype.block_len();
        let coded = InputValues::new((0..row.len()).map(|at| code(row, at, block, &known, dtype)));
        let surplus = known.sums.map(|sums| {
            let of_block = known.values.chunks(32).map(|values| values.iter().sum::<f64>());
            sums.iter().zip(of_block).map(|(sum, values)| sum - values).collect()
        });
        Self { surplus, is_coded: true, ..Self::plain(coded) }
    }
}

/// Evaluates one code. Two codes are possible if builds compute the same step in another order, or if the value is
/// uncertain.
fn code(row: &InputValues, at: usize, block: usize, known: &ActivationRow, dtype: DType) -> ExactValue {
    let (x, value, step) = (row.get(at), known.values[at], known.steps[at]);
    let block = at / block * block..(at / block + 1) * block;
    let of_block = &row.values[block.clone()];
    let largest = of_block.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    if largest == 0.0 || step == 0.0 {
        return ExactValue::bounded(value, x.radius);
    }
    let levels = levels(dtype);
    let unsure = row
        .doubt
        .as_ref()
        .map_or(0.0, |doubt| doubt.radius[block.clone()].iter().copied().fold(0.0, f64::max));
    match dtype {
        DType::Q4_1 | DType::Q5_1 => return offset_code(x, of_block, value, unsure, levels),
        // The scale depends on all codes: the value is uncertain by the widest distance between two codes.
        DType::IQ4_NL if unsure > 0.0 => return ExactValue::bounded(value, x.radius + WIDEST * step),
        DType::IQ4_NL => {
            let [low, high] = refined_scales(of_block, &known.values[block], step);
            if low == high {
                return ExactValue::sure(value);
            }
            let code = value / step;
            return ExactValue::bounded((low + high) / 2.0 * code, (high - low) / 2.0 * code.abs());
        }
        _ => (),
    }
    let scaled = x.value.abs() / largest * levels;
    let slack = scaled * (4.0 * U + unsure / largest) + x.radius / largest * levels;
    let (low, high) = ((scaled - slack).round_ties_even(), (scaled + slack).round_ties_even());
    // A step stored in f16 rounds to one number or to the next.
    let step_is_unsure =
        if dtype == DType::Q8_K { unsure / largest } else { f16_step(largest / levels, unsure / levels) };
    let about = value.abs() * step_is_unsure;
    match low == high {
        true => ExactValue::bounded(value, about),
        false => {
            let middle = (low + high) / 2.0 * step * x.value.signum();
            ExactValue::bounded(middle, (high - low) / 2.0 * step + about)
        }
    }
}

/// Widest distance between neighbouring values of IQ4_NL's table (−127 and −104), in steps.
const WIDEST: f64 = 23.0;

/// Returns the smallest and the largest absolute scale that a block of IQ4_NL may get. The scale is a rounded
/// quotient of two sums in `f32`, whose terms are added in any order, with or without fused multiplications.
fn refined_scales(block: &[f64], decoded: &[f64], step: f64) -> [f64; 2] {
    let (mut products, mut sizes, mut squares) = (0.0f64, 0.0f64, 0.0f64);
    for (x, decoded) in block.iter().zip(decoded) {
        let code = decoded / step;
        let product = x.powi(3) * code;
        (products, sizes) = (products + product, sizes + product.abs());
        squares += (x * code).powi(2);
    }
    // A term is rounded at most three times and added to at most all others.
    let roundings = block.len() as f64 + 2.0;
    let scale = products / squares;
    let unsure = U * (roundings * (sizes / squares + scale.abs()) + scale.abs());
    [scale - unsure, scale + unsure].map(|scale| Float::F16.round(scale))
}

/// Evaluates a code of a block with a minimum.
fn offset_code(x: ExactValue, block: &[f64], value: f64, unsure: f64, levels: f64) -> ExactValue {
    let (min, max) =
        block.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), &x| (min.min(x), max.max(x)));
    let step = (max - min) / levels;
    let about = value.abs() * f16_step(step, 2.0 * unsure / levels) + min.abs() * f16_step(min.abs(), unsure);
    let scaled = (x.value - min) / step;
    let slack = scaled * (4.0 * U + 2.0 * unsure / (max - min)) + (x.radius + unsure) / step;
    let code = |scaled: f64| (scaled + 0.5).floor().clamp(0.0, levels);
    let (low, high) = (code(scaled - slack), code(scaled + slack));
    match low == high {
        true => ExactValue::bounded(value, about),
        false => {
            let (step, min) = (Float::F16.round(step), Float::F16.round(min));
            ExactValue::bounded((low + high) / 2.0 * step + min, (high - low) / 2.0 * step + about)
        }
    }
}

/// Returns the largest code of a block type, in absolute value.
fn levels(dtype: DType) -> f64 {
    match dtype {
        DType::Q4_0 => 8.0,
        DType::Q5_0 => 16.0,
        DType::Q4_1 => 15.0,
        DType::Q5_1 => 31.0,
        _ => 127.0,
    }
}

/// Returns the relative error of a block's `f16` step that an uncertain largest value causes.
fn f16_step(step: f64, unsure: f64) -> f64 {
    let (low, high) = (Float::F16.round(step - unsure), Float::F16.round(step + unsure));
    if high > 0.0 { (high - low) / high } else { 0.0 }
}

/// The smallest and the largest of some values (zero included), with their uncertainty.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ValueRange {
    low: f64,
    high: f64,
    unsure: f64,
}

impl ValueRange {
    pub(crate) fn of(values: impl Iterator<Item = ExactValue>) -> Self {
        values.fold(Self::default(), |extent, x| Self {
            low: extent.low.min(x.value),
            high: extent.high.max(x.value),
            unsure: extent.unsure.max(x.radius),
        })
    }

    /// Returns the possible steps between codes, and their relative error.
    fn steps(&self, codes: &ActivationCodes) -> (Vec<f64>, f64) {
        let most = self.high.max(-self.low);
        let by = self.unsure + ROUNDINGS * U * most;
        let largest = if most.is_finite() { (most + by).min(f32::MAX.into()) } else { most };
        let few = codes.few_steps((most - by).max(0.0) as f32, largest as f32);
        if let Some(few) = few {
            return (few.into_iter().map(f64::from).collect(), 0.0);
        }
        let with = |by: f64| f64::from(codes.step((self.low - by) as f32, (self.high + by) as f32));
        let (step, off) = (with(0.0), with(self.unsure) - with(-self.unsure));
        (vec![step], if step > 0.0 { off / step } else { 0.0 })
    }
}

/// Number of roundings in a scale and in a quotient by it. GPUs approximate reciprocals with the error of two
/// roundings, which makes six. xcheck rounds the scale and the quotient once each.
const ROUNDINGS: f64 = 8.0;

/// Range of values, or a stored scale, that determines codes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CodeRange {
    /// Codes are determined by the range of the values.
    Values(ValueRange),
    /// A scale that is stored with the matrix.
    Stored(InputScale),
}

impl CodeRange {
    /// Returns the possible steps between codes, and their relative error.
    fn steps(&self, codes: &ActivationCodes) -> (Vec<f64>, f64) {
        match self {
            CodeRange::Values(range) => range.steps(codes),
            CodeRange::Stored(input) => (vec![codes.stored(input).0.into()], 0.0),
        }
    }

    /// Returns the zero point, and the smallest and largest code for the lowest and the highest possible range.
    fn ends(&self, codes: &ActivationCodes, step: f64, slack: impl Fn(f64) -> f64) -> (f32, [(f32, f32); 2]) {
        match self {
            CodeRange::Values(ValueRange { low, .. }) => {
                let around = slack(low / step) * step;
                (0.0, [low - around, low + around].map(|low| codes.ends(low as f32, step as f32)))
            }
            CodeRange::Stored(input) => {
                let (_, zero) = codes.stored(input);
                (zero, [codes.ends_around(zero); 2])
            }
        }
    }
}

/// Returns a row of activations, quantised to codes and decoded again. `shared` determines the codes if they are
/// common to the whole pass or to the matrix.
pub(crate) fn integers(row: &InputValues, codes: &ActivationCodes, shared: Option<CodeRange>) -> InputValues {
    let len = codes.group_len(row.len(), 1).max(1);
    let of_group = |first: usize| {
        shared.unwrap_or_else(|| {
            CodeRange::Values(ValueRange::of((first..row.len().min(first + len)).map(|at| row.get(at))))
        })
    };
    let with_steps = |range: CodeRange| (range, range.steps(codes));
    let groups: Vec<_> = (0..row.len()).step_by(len).map(of_group).map(with_steps).collect();
    InputValues::new((0..row.len()).map(|at| {
        let (range, (steps, off)) = &groups[at / len];
        let values = steps.iter().map(|&step| integer(row.get(at), codes, range, step, *off));
        values.reduce(ExactValue::or).unwrap_or_default()
    }))
}

/// Evaluates one value. Two codes are possible if engines compute the same step in another order, or if the value
/// is uncertain.
fn integer(x: ExactValue, codes: &ActivationCodes, range: &CodeRange, step: f64, off: f64) -> ExactValue {
    if !(step > 0.0 && step.is_finite()) {
        let is_zero = step == 0.0 && codes.has_zero_groups() && x.value.is_finite();
        return if is_zero { ExactValue::sure(0.0) } else { x };
    }
    let roundings = if codes.local.is_some() { ROUNDINGS } else { 4.0 };
    let slack = |scaled: f64| scaled.abs() * (roundings * U + off);
    let (zero, ends) = range.ends(codes, step, slack);
    let scaled = x.value / step;
    // The sum of the quotient and the zero point is rounded, too.
    let unsure = slack(scaled) + U * f64::from(zero.abs()) + x.radius / step;
    let code = |scaled: f64, ends: (f32, f32)| codes.nearest_around(zero, scaled, ends);
    let low = ends.map(|ends| code(scaled - unsure, ends)).into_iter().fold(f64::INFINITY, f64::min);
    let high = ends.map(|ends| code(scaled + unsure, ends)).into_iter().fold(f64::NEG_INFINITY, f64::max);
    // Engines that store the inverse of the step decode with a step that has two more roundings.
    let inverted = if codes.scale.is_power() { 0.0 } else { 2.0 * U };
    let [low, high] = [(low, -1.0), (high, 1.0)].map(|(code, side)| {
        let off: f64 = side * code.signum() * inverted;
        codes.decoded(code, step * (1.0 + off))
    });
    let about = low.abs().max(high.abs()) * off;
    ExactValue::bounded((low + high) / 2.0, (high - low) / 2.0 + about)
}
