//! Exact evaluation of products with a weight matrix: `x · wᵀ (+ bias)`.
//!
//! A sum of n products xᵢwᵢ, added one after the other in `f32`, has the standard deviation k·u·√(n/2·Q² + (n/3 +
//! 1)·y²), with Q² = Σ(xᵢwᵢ)². Each partial sum is rounded, and partial sums follow a random walk or drift towards y.
//! Other orders have shorter chains of additions. The exception is a sum that begins with a bias b: it adds n·b·(b + y)
//! under the root. If activations are codes, products within a block are exact integers, and n counts blocks.

mod integer_search;
mod integers;
mod repeated_bias;
mod row_scale;
mod split_sums;

use std::ops::Range;

use multiversion::multiversion;

use crate::exact::dot::{cut_off, inherit, sums};
use crate::exact::input::{InputTensor, InputValues};
use crate::exact::operand::{CodeRange, Operand, ValueRange, operand_type, split};
use crate::exact::tiles::{InterleavedRows, PANEL, PanelTile, SIDE};
use crate::exact::value::{K, U};
use crate::exact::{
    Choice, ColumnEvaluator, ExactValue, Float, LAMBDA, Operation, Profile, RowScales, is_given,
};
use crate::parallel;
use crate::quant::ternary::is_ternary;
use crate::quant::{self, CodeGroup, decode_matrix_row};
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};

pub use integer_search::{IntegerProducts, products_that_explain};
pub use integers::Integers;
pub(crate) use repeated_bias::RepeatedBias;
pub use row_scale::scales_of_row;
pub(crate) use split_sums::SplitSums;

/// Products that are computed in f64, together with their squares, in one nanosecond.
const PRODUCTS: usize = 2;

/// Returns true if products use integers, or operands that are split in two numbers.
fn is_of_parts(profile: &Profile) -> bool {
    let of_integers = profile.activation_codes.is_some() || profile.row_scales != RowScales::Decoded;
    of_integers || profile.operands.split().is_some()
}

/// Relative error of the constant for 1 / 127² in bitsandbytes' code for CPUs. Its code for CUDA has 6.200012e-5.
const CONSTANT_ERROR: f64 = 6.200124e-5 * 127.0 * 127.0 - 1.0;

/// Number of weight rows that are searched for row scales.
const FIRST_ROWS: usize = 4;

/// A linear layer, `x · wᵀ` and a bias: `[T, cols]` to `[T, rows]`.
pub struct Linear {
    /// `[T, cols]`
    pub x: Tensor,
    /// `[rows, cols]`
    pub(crate) w: Matrix,
    /// `[rows]`
    pub(crate) bias: Option<Vec<f32>>,
}

impl Operation for Linear {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (Some(&first), Some(&last)) = (wanted.first(), wanted.last()) else { return Vec::new() };
        let tokens = first / self.w.rows..last / self.w.rows + 1;
        let profile = &self.profile(profile);
        if wanted.len() == last + 1 - first {
            return self.all(profile, tokens, first..last + 1);
        }
        self.some(profile, &self.operands(profile, tokens), wanted)
    }

    fn by_columns<'s>(
        &'s self,
        profile: &Profile,
        tokens: Range<usize>,
    ) -> Option<Box<dyn ColumnEvaluator + 's>> {
        let is_coded = Float::of(operand_type(profile, self.w.dtype)).is_none();
        let profile = &self.profile(profile);
        let of_integers = is_of_parts(profile) || profile.weights_of_kernels;
        let may_be_tiled =
            !is_coded && !of_integers && !profile.truncates && profile.parts == 1 && is_given(&self.x);
        may_be_tiled.then(|| Box::new(TiledProducts::new(self, profile, tokens)) as _)
    }

    fn is_light(&self) -> bool {
        false
    }

    fn is_product(&self) -> bool {
        true
    }

    fn choices(&self) -> &'static [Choice] {
        const WITH_BIAS: &[Choice] = &[
            Choice::RoundedRowScales,
            Choice::ExactRowScales,
            Choice::Biased,
            Choice::Tf32,
            Choice::Tf32Away,
            Choice::Tf32Cut,
            Choice::Truncates,
            Choice::Halves,
            Choice::Quarters,
            Choice::Eighths,
            Choice::Operands,
            Choice::WholeActivations,
            Choice::SplitBf16,
            Choice::SplitTf32,
            Choice::WholeWeights,
            Choice::WeightsOfKernels,
        ];
        // Weights of another type have no more digits than the model's type, or are not decoded before products.
        let last = match (self.w.of_kernels(), self.w.dtype) {
            (Some(_), _) => WITH_BIAS.len(),
            (None, DType::F32) => WITH_BIAS.len() - 1,
            _ => WITH_BIAS.len() - 2,
        };
        match (self.has_row_scales(), self.bias.is_some()) {
            (true, _) => &WITH_BIAS[..last],
            (false, true) => &WITH_BIAS[2..last],
            (false, false) => &WITH_BIAS[3..last],
        }
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }

    fn dependence(&self) -> f64 {
        (self.w.rows as f64 / self.w.cols as f64).max(1.0)
    }

    fn is_unbiased(&self, profile: &Profile) -> bool {
        // If a code may round either way, all results of its token share the error.
        let is_coded = Float::of(operand_type(profile, self.w.dtype)).is_none();
        let of_integers = is_of_parts(profile);
        is_given(&self.x) && !profile.truncates && profile.parts == 1 && !is_coded && !of_integers
    }
}

impl Linear {
    /// Returns true if one of the first rows of weights is 8-bit integers times a scale of a short type.
    fn has_row_scales(&self) -> bool {
        let mut decoded = vec![0.0f32; self.w.cols];
        let mut has_scale = |row: usize| {
            decode_matrix_row(&self.w, row, &mut decoded);
            [Float::Bf16, Float::F16].into_iter().any(|short| {
                let row: Vec<f64> = decoded.iter().map(|&w| short.round(w.into())).collect();
                !scales_of_row(&row, short, short).is_empty()
            })
        };
        (0..self.w.rows.min(FIRST_ROWS)).any(&mut has_scale)
    }

    /// Returns the profile without settings that only apply to other products.
    fn profile(&self, profile: &Profile) -> Profile {
        let activation_codes = profile.activation_codes.filter(|codes| match codes.group {
            CodeGroup::Matrix => self.w.input_scale().is_some(),
            _ if codes.outliers > 0.0 => self.w.outliers().is_some(),
            _ => codes.whole_for != self.w.rows,
        });
        Profile { activation_codes, ..*profile }
    }

    /// Evaluates the consecutive results in `range`, which lie in the rows of `tokens`.
    fn all(&self, profile: &Profile, tokens: Range<usize>, range: Range<usize>) -> Vec<ExactValue> {
        let rows = self.w.rows;
        let (panels, each) = (rows.div_ceil(PANEL), tokens.len() * PANEL * self.w.cols / PRODUCTS);
        let outputs = |panel: usize| panel * PANEL..rows.min((panel + 1) * PANEL);
        let panels = match self.by_columns(profile, tokens.clone()) {
            Some(tiled) => parallel::map(panels, each, |panel| tiled.at(outputs(panel))),
            None => {
                let operands = self.operands(profile, tokens.clone());
                parallel::map(panels, each, |panel| self.one_by_one(profile, &operands, outputs(panel)))
            }
        };
        let mut exacts = Vec::with_capacity(tokens.len() * rows);
        for token in 0..tokens.len() {
            let of_token = |panel: &'_ Vec<ExactValue>| {
                let width = panel.len() / tokens.len();
                exacts.extend_from_slice(&panel[token * width..][..width]);
            };
            panels.iter().for_each(of_token);
        }
        exacts.drain(..range.start - tokens.start * rows);
        exacts.truncate(range.len());
        exacts
    }

    fn one_by_one(&self, profile: &Profile, tokens: &[Operand], outputs: Range<usize>) -> Vec<ExactValue> {
        let row = |output: usize| (WeightRow::new(&self.w, output, profile), self.bias(output, profile));
        let weights: Vec<_> = outputs.map(row).collect();
        let times = |x| weights.iter().map(move |(row, bias)| row.times(x, *bias, profile));
        tokens.iter().flat_map(times).collect()
    }

    /// Evaluates some results by output, so that a row of weights is decoded once for all tokens.
    fn some(&self, profile: &Profile, tokens: &[Operand], wanted: &[usize]) -> Vec<ExactValue> {
        self.by_output(profile, tokens, wanted, |row, x, output| {
            row.times(x, self.bias(output, profile), profile)
        })
    }

    /// Evaluates the wanted results, one output (row of weights) after the other. `times` returns the product of an
    /// output's row with a token's activations.
    fn by_output(
        &self,
        profile: &Profile,
        tokens: &[Operand],
        wanted: &[usize],
        times: impl Fn(&WeightRow, &Operand, usize) -> ExactValue + Sync,
    ) -> Vec<ExactValue> {
        let rows = self.w.rows;
        let first_token = wanted.first().map_or(0, |flat| flat / rows);
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_unstable_by_key(|&index| wanted[index] % rows);
        let outputs: Vec<&[usize]> = order.chunk_by(|&a, &b| wanted[a] % rows == wanted[b] % rows).collect();
        let of_output = |index: usize| {
            let indices = outputs[index];
            let output = wanted[indices[0]] % rows;
            let row = WeightRow::new(&self.w, output, profile);
            let at = |&index: &usize| times(&row, &tokens[wanted[index] / rows - first_token], output);
            indices.iter().map(at).collect::<Vec<_>>()
        };
        let found = parallel::map(outputs.len(), self.w.cols, of_output);
        let mut exacts = vec![ExactValue::default(); wanted.len()];
        for (indices, found) in outputs.into_iter().zip(found) {
            indices.iter().zip(found).for_each(|(&index, exact)| exacts[index] = exact);
        }
        exacts
    }

    fn bias(&self, output: usize, profile: &Profile) -> Option<f64> {
        let float = if profile.wide_stream { profile.results } else { profile.weights };
        self.bias.as_ref().map(|bias| float.round(bias[output].into()))
    }

    /// Returns the tokens' rows of activations.
    fn operands(&self, profile: &Profile, tokens: Range<usize>) -> Vec<Operand> {
        let width = self.w.cols;
        let x = InputTensor::of(&self.x, profile);
        let all = || ValueRange::of((0..self.x.data().len()).map(|flat| x.get(flat)));
        let shared = match profile.activation_codes.map(|codes| codes.group) {
            Some(CodeGroup::Pass) => Some(CodeRange::Values(all())),
            Some(CodeGroup::Matrix) => self.w.input_scale().map(CodeRange::Stored),
            _ => None,
        };
        let codes = profile.activation_codes.filter(|codes| codes.outliers > 0.0);
        let outliers = codes.and_then(|codes| Some((codes, codes.outlier_columns(self.x.data(), width)?)));
        parallel::map(tokens.len(), 4 * width, |token| {
            let row = x.part((tokens.start + token) * width, width);
            match &outliers {
                Some((codes, columns)) => Operand::with_outliers(&row, codes, columns),
                None => Operand::new(row, profile, self.w.dtype, shared),
            }
        })
    }

    /// Returns the rounding of a stored weight.
    fn widened(profile: &Profile) -> impl Fn(f32) -> f64 {
        let (stored, unit) = (profile.weights, profile.unit_of_products());
        let unit = if unit == stored { Float::F32 } else { unit };
        let rounded = |float: Float, x| if float == Float::F32 { x } else { float.round(x) };
        move |x| rounded(unit, rounded(stored, x.into()))
    }
}

/// Products of recorded plain numbers: four tokens with a panel of weights at once.
struct TiledProducts<'s> {
    linear: &'s Linear,
    profile: Profile,
    tokens: Vec<Operand>,
    fours: Vec<InterleavedRows<SIDE>>,
}

impl<'s> TiledProducts<'s> {
    fn new(linear: &'s Linear, profile: &Profile, tokens: Range<usize>) -> Self {
        let tokens = linear.operands(profile, tokens);
        let fours: Vec<&[Operand]> = tokens.chunks(SIDE).collect();
        let fours = parallel::map(fours.len(), SIDE * linear.w.cols, |four| {
            let rows: Vec<&[f64]> = fours[four].iter().map(|x| x.row.values.as_slice()).collect();
            InterleavedRows::of(&rows)
        });
        Self { linear, profile: *profile, tokens, fours }
    }

    /// Returns the weight rows of some outputs.
    fn panel(&self, outputs: Range<usize>) -> InterleavedRows<PANEL> {
        let w = &self.linear.w;
        let widened = Linear::widened(&self.profile);
        let (mut decoded, mut rows) = (vec![0.0f32; w.cols], vec![0.0; outputs.len() * w.cols]);
        for (output, row) in outputs.zip(rows.chunks_mut(w.cols)) {
            decode_matrix_row(w, output, &mut decoded);
            row.iter_mut().zip(&decoded).for_each(|(value, &x)| *value = widened(x));
        }
        InterleavedRows::of(&rows.chunks(w.cols).collect::<Vec<_>>())
    }

    /// Evaluates one value separately, because the sums of its tile are not exact enough.
    fn alone(&self, token: usize, output: usize) -> ExactValue {
        let row = WeightRow::new(&self.linear.w, output, &self.profile);
        row.times(&self.tokens[token], self.linear.bias(output, &self.profile), &self.profile)
    }
}

impl ColumnEvaluator for TiledProducts<'_> {
    fn at(&self, columns: Range<usize>) -> Vec<ExactValue> {
        let width = columns.len();
        let n = self.linear.w.cols.div_ceil(self.profile.lanes) as f64;
        let mut exacts = vec![ExactValue::default(); self.tokens.len() * width];
        for first in columns.clone().step_by(PANEL) {
            let outputs = first..columns.end.min(first + PANEL);
            let panel = self.panel(outputs.clone());
            for (group, (four, exacts)) in self.fours.iter().zip(exacts.chunks_mut(SIDE * width)).enumerate()
            {
                let tile = PanelTile::new(&panel, four);
                for (row, exacts) in exacts.chunks_mut(width).enumerate() {
                    let exacts = &mut exacts[first - columns.start..][..outputs.len()];
                    let (sums, squares) = tile.row(row);
                    added(n, sums, &squares, exacts);
                    self.finish(group * SIDE + row, outputs.clone(), exacts);
                }
            }
        }
        exacts
    }
}

impl TiledProducts<'_> {
    /// Adds biases, and evaluates separately the values that a tile cannot decide.
    fn finish(&self, token: usize, outputs: Range<usize>, exacts: &mut [ExactValue]) {
        if self.linear.bias.is_none() && exacts.iter().all(|exact| !exact.sigma.is_nan()) {
            return;
        }
        for (exact, output) in exacts.iter_mut().zip(outputs) {
            *exact = match self.linear.bias(output, &self.profile) {
                _ if exact.sigma.is_nan() => self.alone(token, output),
                Some(bias) => with_bias(*exact, bias, self.linear.w.cols, &self.profile),
                None => *exact,
            };
        }
    }
}

/// Turns the sums and sums of squares of one token with a panel of weights into exact values.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn added(n: f64, sums: &[f64; PANEL], squares: &[f64; PANEL], exacts: &mut [ExactValue]) {
    for ((exact, &value), &squares) in exacts.iter_mut().zip(sums).zip(squares) {
        let sigma = K * U * ((n / 2.0 + 1.0) * squares + (n / 3.0 + 2.0) * value * value).sqrt();
        *exact = ExactValue { value, sigma, radius: LAMBDA * sigma };
    }
}

/// A row of weights. Minima of blocks are multiplied with the activations in a separate sum.
pub(crate) struct WeightRow {
    codes: Vec<f64>,
    minima: Option<Vec<f64>>,
    /// Number of neighbouring products that are summed exactly.
    block: usize,
    /// Candidates for the row's scale, which multiplies the sum over the codes.
    scales: Vec<f64>,
    /// Second number of each weight, if weights are split in two numbers.
    low: Option<Vec<f64>>,
}

impl WeightRow {
    pub(crate) fn new(w: &Matrix, output: usize, profile: &Profile) -> Self {
        if let Some(w) = Some(w).filter(|_| profile.weights_of_kernels).and_then(Matrix::of_kernels) {
            return Self::new(&w, output, &Profile { weights_of_kernels: false, ..*profile });
        }
        let mut decoded = vec![0.0f32; w.cols];
        decode_matrix_row(w, output, &mut decoded);
        let weight = Linear::widened(profile);
        let block = w.dtype.block_len();
        let is_coded = Float::of(operand_type(profile, w.dtype)).is_none();
        let scale = if is_ternary(w.dtype) { 1.0 } else { w.scale() };
        // ggml multiplies the product by the matrix's own scale.
        let scales: Vec<f64> = if is_coded && scale != 1.0 { vec![scale.into()] } else { Vec::new() };
        if let Some([codes, minima]) = is_coded.then(|| quant::parts(w.dtype, w.row(output))).flatten() {
            return Self { codes, minima: Some(minima), block, scales, low: None };
        }
        if !scales.is_empty() {
            quant::decode_row(w.dtype, w.row(output), &mut decoded);
            let codes = decoded.into_iter().map(weight).collect();
            return Self { codes, minima: None, block, scales, low: None };
        }
        let mut codes: Vec<f64> = decoded.into_iter().map(weight).collect();
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

    pub(crate) fn times(&self, x: &Operand, bias: Option<f64>, profile: &Profile) -> ExactValue {
        let columns = 0..self.codes.len();
        if profile.parts > 1 {
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

    /// Adds the product of the columns with outliers, whose weights are rounded, to a product of codes, which is rounded
    /// before.
    fn with_outliers(&self, codes: ExactValue, outliers: &InputValues, profile: &Profile) -> ExactValue {
        // Libraries multiply by a rounded 1 / 127².
        let codes = codes.moved(0.0, CONSTANT_ERROR * codes.value.abs());
        if outliers.values.iter().all(|&x| x == 0.0) {
            return codes;
        }
        let weights = self.codes.iter().map(|&w| profile.results.round(w)).collect();
        let row = Self { codes: weights, minima: None, block: 1, scales: Vec::new(), low: None };
        let plain = Profile { activation_codes: None, ..*profile };
        let whole = row.over(0..row.codes.len(), &Operand::plain(outliers.clone()), &plain);
        let codes = codes.rounded(profile.results);
        let sum = |a: ExactValue, b: ExactValue| {
            ExactValue::bounded(a.value + b.value, a.radius + b.radius).plus(0.0)
        };
        // The second product is added before or after it is rounded.
        sum(codes, whole).or(sum(codes, whole.rounded(profile.results)))
    }

    /// Returns the sum over devices that each have equal ranges of columns. The bias is added to the complete sum, or to
    /// the first device's part before it is rounded.
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

    /// Returns the sum over some columns.
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

/// Maximum number of neighbouring weights that share a scale, if activations are integers.
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
fn with_bias(sum: ExactValue, bias: f64, columns: usize, profile: &Profile) -> ExactValue {
    match profile.biased {
        Float::F32 => sum.biased(bias, columns.div_ceil(profile.lanes) as f64),
        float => sum.rounded(float).plus(bias),
    }
}

/// Returns the rounded sum over devices that each hold a partial sum in a short type. They add all at once, or around
/// a ring in either direction, or in pairs, with rounding after each partial sum.
fn reduced(sums: &[ExactValue], short: Float) -> ExactValue {
    let sums: Vec<ExactValue> = sums.iter().map(|sum| sum.rounded(short)).collect();
    let plus = |a: ExactValue, b: ExactValue| ExactValue::bounded(a.value + b.value, a.radius + b.radius);
    let then = |a: ExactValue, b: ExactValue| plus(a.rounded(short), b.rounded(short));
    let n = sums.len();
    let around = |first: usize, step: usize| {
        (1..n).fold(sums[first], |sum, hop| then(sum, sums[(first + hop * step) % n]))
    };
    let mut pairs = sums.clone();
    while pairs.len() > 1 {
        pairs = pairs.chunks(2).map(|pair| pair[1..].iter().fold(pair[0], |a, &b| then(a, b))).collect();
    }
    let at_once = sums.iter().copied().reduce(plus);
    let rings = (0..n).flat_map(|first| [around(first, 1), around(first, n - 1)]);
    let may_be: Vec<ExactValue> = rings.chain(pairs).chain(at_once).collect();
    let low = may_be.iter().map(|sum| sum.value - sum.radius).fold(f64::INFINITY, f64::min);
    let high = may_be.iter().map(|sum| sum.value + sum.radius).fold(f64::NEG_INFINITY, f64::max);
    // The bias is added after the reduction.
    ExactValue::bounded((low + high) / 2.0, (high - low) / 2.0).plus(0.0).rounded(short)
}
