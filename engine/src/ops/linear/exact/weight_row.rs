//! A row of weights times a row of activations, evaluated exactly.

use std::ops::Range;

use super::{Linear, scales_of_row};
use crate::exact::dot::{cut_off, inherit, sums};
use crate::exact::operand::{Operand, OutlierColumns, operand_type, split};
use crate::exact::value::{K, U};
use crate::exact::{ExactValue, Float, Profile, RowScales};
use crate::quant::ternary::is_ternary;
use crate::quant::{self, decode_matrix_row};
use crate::weight::Matrix;

/// Relative error of the constant for 1 / 127² in bitsandbytes' code for CPUs. Its code for CUDA uses 6.200012e-5.
const CONSTANT_ERROR: f64 = 6.200124e-5 * 127.0 * 127.0 - 1.0;

/// A row of weights. Minima of blocks are multiplied with the activations in a separate sum.
pub(crate) struct WeightRow {
    codes: Vec<f64>,
    minima: Option<Vec<f64>>,
    /// Number of neighbouring products that are summed exactly.
    block: usize,
    /// Candidates for the row's scale, by which the sum over the codes is multiplied.
    scales: Vec<f64>,
    /// Second number of each weight, if weights are split into two numbers.
    low: Option<Vec<f64>>,
}

impl WeightRow {
    /// Decodes a row, and finds its scale if the profile applies it to the sum.
    pub(crate) fn new(w: &Matrix, output: usize, profile: &Profile) -> Self {
        let is_of_results = |dtype| Float::of(dtype) == Some(profile.results);
        if let Some(w) =
            Some(w).filter(|_| profile.weights_of_kernels).and_then(|w| w.of_kernels(is_of_results))
        {
            return Self::new(&w, output, &Profile { weights_of_kernels: false, ..*profile });
        }
        let block = w.dtype.block_len();
        let is_coded = Float::of(operand_type(profile, w.dtype)).is_none();
        let scale = if is_ternary(w.dtype) { 1.0 } else { w.scale() };
        // ggml multiplies the product by the matrix's own scale.
        let scales: Vec<f64> = if is_coded && scale != 1.0 { vec![scale.into()] } else { Vec::new() };
        if let Some([codes, minima]) = is_coded.then(|| quant::parts(w.dtype, w.row(output))).flatten() {
            return Self { codes, minima: Some(minima), block, scales, low: None };
        }
        let mut decoded = vec![0.0f32; w.cols];
        match scales.is_empty() {
            true => decode_matrix_row(w, output, &mut decoded),
            false => quant::decode_row(w.dtype, w.row(output), &mut decoded),
        }
        let mut codes = vec![0.0; w.cols];
        Linear::widen(profile, &decoded, &mut codes);
        if !scales.is_empty() {
            return Self { codes, minima: None, block, scales, low: None };
        }
        let mut scales = Vec::new();
        if profile.row_scales != RowScales::Decoded {
            scales = scales_of_row(&codes, profile.weights, profile.results);
            // All candidate scales give the same codes, or the codes are undetermined.
            if let [scale, others @ ..] = scales.as_slice() {
                let integers: Vec<f64> = codes.iter().map(|w| (w / scale).round()).collect();
                let are_those =
                    |scale: &f64| codes.iter().zip(&integers).all(|(w, code)| (w / scale).round() == *code);
                match others.iter().all(are_those) {
                    true => codes = integers,
                    false => scales.clear(),
                }
            }
        }
        let low = profile.operands.split().map(|half| {
            let part = |w: &mut f64| {
                let (high, low) = split(*w, half);
                *w = high + low;
                low
            };
            codes.iter_mut().map(part).collect()
        });
        Self { codes, minima: None, block, scales, low }
    }

    /// Returns the product with a row of activations, plus a bias.
    pub(crate) fn times(&self, x: &Operand, bias: Option<f64>, profile: &Profile) -> ExactValue {
        let columns = 0..self.codes.len();
        if profile.parts > 1 && x.outliers.is_none() {
            return self.over_devices(x, bias, profile);
        }
        let exact = self.scaled(self.over(columns.clone(), x, profile), profile);
        if let Some(outliers) = &x.outliers {
            let codes = match bias {
                Some(bias) => with_bias(exact, bias, columns.len(), profile),
                None => exact,
            };
            return self.with_outliers(codes, outliers, profile);
        }
        match bias {
            // With codes, the sum is complete before the bias is added.
            Some(bias) if x.is_coded => exact.rounded(profile.biased).plus(bias),
            Some(bias) => with_bias(exact, bias, columns.len(), profile),
            None => exact,
        }
    }

    /// Adds the product of the columns with outliers to a product of codes. The weights of these columns are rounded,
    /// and so is the product of codes before the addition.
    fn with_outliers(&self, codes: ExactValue, outliers: &OutlierColumns, profile: &Profile) -> ExactValue {
        let OutlierColumns { columns, values } = outliers;
        // Libraries multiply by a rounded 1 / 127².
        let codes = codes.moved(0.0, CONSTANT_ERROR * codes.value.abs());
        if values.values.iter().all(|&x| x == 0.0) {
            return codes;
        }
        let weights = columns.iter().map(|&column| profile.results.round(self.codes[column])).collect();
        let row = Self { codes: weights, minima: None, block: 1, scales: Vec::new(), low: None };
        let plain = Profile { activation_codes: None, ..*profile };
        let whole = row.over(0..row.codes.len(), &Operand::plain(values.clone()), &plain);
        let codes = codes.rounded(profile.results);
        let sum = |a: ExactValue, b: ExactValue| {
            ExactValue::bounded(a.value + b.value, a.radius + b.radius).plus(0.0)
        };
        // The second product is added before or after it is rounded.
        sum(codes, whole).or(sum(codes, whole.rounded(profile.results)))
    }

    /// Returns the sum over devices that each have an equal range of columns. The bias is added to the complete sum, or
    /// to the first device's part before that part is rounded.
    fn over_devices(&self, x: &Operand, bias: Option<f64>, profile: &Profile) -> ExactValue {
        let columns = self.codes.len();
        let width = columns.div_ceil(profile.parts);
        let part = |first: usize| self.over(first..columns.min(first + width), x, profile);
        let mut sums: Vec<ExactValue> = (0..columns).step_by(width).map(part).collect();
        let complete = self.scaled(reduced(&sums, profile.results), profile);
        let Some(bias) = bias else { return complete };
        let after = complete.rounded(profile.biased).plus(bias);
        if !self.scales.is_empty() || x.is_coded {
            return after;
        }
        sums[0] = with_bias(sums[0], bias, width, &Profile { biased: Float::F32, ..*profile });
        after.or(reduced(&sums, profile.results))
    }

    /// Returns the sums over consecutive ranges of `width` columns.
    pub(super) fn parts(
        &self,
        width: usize,
        x: &Operand,
        profile: &Profile,
    ) -> impl Iterator<Item = ExactValue> {
        let columns = self.codes.len();
        let part = move |first: usize| self.over(first..columns.min(first + width), x, profile);
        (0..columns).step_by(width).map(move |first| self.scaled(part(first), profile))
    }

    /// Returns a sum over codes times the row's scale.
    fn scaled(&self, sum: ExactValue, profile: &Profile) -> ExactValue {
        let sum = if self.scales.is_empty() || profile.row_scales != RowScales::Rounded {
            sum
        } else {
            sum.rounded(profile.results)
        };
        let times = |&scale: &f64| {
            let value = sum.value * scale;
            sum.through(value, scale).moved(K * U * value.abs(), U * value.abs())
        };
        self.scales.iter().map(times).reduce(ExactValue::or).unwrap_or(sum)
    }

    /// Returns the sum over a range of columns.
    fn over(&self, columns: Range<usize>, x: &Operand, profile: &Profile) -> ExactValue {
        let block = if x.is_coded { self.block } else { 1 };
        let (codes, values) = (&self.codes[columns.clone()], &x.row.values[columns.clone()]);
        let (mut value, mut squares) = sums(codes, values, block);
        let mut drift = value * value;
        if let (Some(w), Some(x)) = (&self.low, &x.low) {
            // The product of both second numbers is omitted.
            value -= w[columns.clone()].iter().zip(&x[columns.clone()]).map(|(w, x)| w * x).sum::<f64>();
        }
        if let Some(minima) = &self.minima {
            let (mins, more) = sums(minima, &x.row.values, block);
            let surplus = x.surplus.iter().flatten().enumerate().map(|(at, by)| minima[32 * at] * by);
            let mins = mins + surplus.sum::<f64>();
            (value, squares, drift) = (value + mins, squares + more, drift + mins * mins);
        }
        let n = (codes.len().div_ceil(block * profile.lanes)) as f64;
        let n = if x.low.is_some() { 3.0 * n } else { n };
        // Each block's eight lanes are scaled and then summed in three steps.
        let steps = if block > 1 { n / 2.0 + 4.0 } else { n / 2.0 + 1.0 };
        let sigma = K * U * (steps * squares + (n / 3.0 + 2.0) * drift).sqrt();
        let mut exact = ExactValue::statistical(value, sigma);
        if profile.truncates {
            exact = exact.moved(0.0, cut_off(codes, values));
        }
        if profile.activation_codes.is_some() {
            exact = scaled_by_blocks(exact, codes, values);
        }
        if let Some(doubt) = &x.row.doubt {
            let whole = |at: usize| codes[at] + self.minima.as_ref().map_or(0.0, |minima| minima[at]);
            exact = inherit(exact, whole, &doubt.sigma[columns.clone()], &doubt.radius[columns]);
        }
        exact
    }
}

/// Maximum number of neighbouring weights that share a scale, if activations are quantised to integers.
const BLOCK: usize = 32;

/// Evaluates a sum of integer products in blocks. The product of a block's two scales is rounded, and so is its product
/// with the block's sum.
fn scaled_by_blocks(sum: ExactValue, codes: &[f64], values: &[f64]) -> ExactValue {
    let of_block = |(codes, values): (&[f64], &[f64])| {
        codes.iter().zip(values).map(|(code, value)| code * value).sum::<f64>()
    };
    let blocks = codes.chunks(BLOCK).zip(values.chunks(BLOCK)).map(of_block);
    let (sizes, squares) =
        blocks.fold((0.0, 0.0), |(sizes, squares), block| (sizes + block.abs(), squares + block * block));
    sum.moved(2.0 * K * U * squares.sqrt(), 3.0 * U * sizes)
}

/// Adds a bias to a sum over `columns` columns.
pub(super) fn with_bias(sum: ExactValue, bias: f64, columns: usize, profile: &Profile) -> ExactValue {
    match profile.biased {
        Float::F32 => sum.biased(bias, columns.div_ceil(profile.lanes) as f64),
        float => sum.rounded(float).plus(bias),
    }
}

/// Returns the rounded sum over devices that each have a partial sum in a short type. The devices add all at once,
/// around a ring in either direction, or in pairs, and round after each partial sum.
pub(super) fn reduced(sums: &[ExactValue], short: Float) -> ExactValue {
    let sums: Vec<ExactValue> = sums.iter().map(|sum| sum.rounded(short)).collect();
    let plus = |a: ExactValue, b: ExactValue| ExactValue::bounded(a.value + b.value, a.radius + b.radius);
    // Devices' sums are already rounded.
    let then = |a: ExactValue, b: ExactValue| plus(a.rounded(short), b);
    let n = sums.len();
    let around = |first: usize, step: usize| {
        (1..n).fold(sums[first], |sum, hop| then(sum, sums[(first + hop * step) % n]))
    };
    let mut pairs = sums.clone();
    while pairs.len() > 1 {
        let of_pair = |pair: &[ExactValue]| match *pair {
            [a, b] => then(a, b.rounded(short)),
            _ => pair[0],
        };
        pairs = pairs.chunks(2).map(of_pair).collect();
    }
    let at_once = sums.iter().copied().reduce(plus);
    let rings = (0..n).flat_map(|first| [around(first, 1), around(first, n - 1)]);
    let may_be: Vec<ExactValue> = rings.chain(pairs).chain(at_once).collect();
    let low = may_be.iter().map(|sum| sum.value - sum.radius).fold(f64::INFINITY, f64::min);
    let high = may_be.iter().map(|sum| sum.value + sum.radius).fold(f64::NEG_INFINITY, f64::max);
    // The bias is added after the reduction.
    ExactValue::bounded((low + high) / 2.0, (high - low) / 2.0).plus(0.0).rounded(short)
}
