//! Exact evaluation of products with a weight matrix: `x · wᵀ (+ bias)`.
//!
//! A sum of n products xᵢwᵢ, added one after the other in `f32`, has the standard deviation k·u·√(n/2·Q² + (n/3 +
//! 1)·y²), with Q² = Σ(xᵢwᵢ)². Each partial sum is rounded, and partial sums follow a random walk or drift towards
//! y. In other orders, chains of additions are shorter, so the error is smaller. A sum that begins with a bias b
//! has an additional term n·b·(b + y) under the root. If activations are codes, products within a block are exact
//! integers, and n counts blocks.

mod integer_search;
mod integers;
mod repeated_bias;
mod row_scale;
mod shared_codes;
mod split_sums;
mod weight_row;

use std::ops::Range;

use multiversion::multiversion;

use crate::exact::input::InputTensor;
use crate::exact::operand::{Operand, operand_type};
use crate::exact::tiles::{InterleavedRows, PANEL, PanelTile, SIDE};
use crate::exact::value::{K, U};
use crate::exact::{
    Choice, ColumnEvaluator, ExactValue, Float, FusedResults, LAMBDA, Operation, Profile, RowScales,
    is_given, node_of,
};
use crate::ops::gating::exact::GatedProduct;
use crate::parallel;
use crate::quant::{CodeGroup, decode_matrix_row};
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};

pub(crate) use integer_search::short_type;
pub use integer_search::{IntegerProducts, products_that_explain};
pub use integers::Integers;
pub(crate) use repeated_bias::RepeatedBias;
pub use row_scale::scales_of_row;
pub(crate) use shared_codes::SharedCodes;
pub(crate) use split_sums::SplitSums;
pub(crate) use weight_row::WeightRow;
use weight_row::{reduced, with_bias};

/// Number of products that are computed in f64, together with their squares, in one nanosecond.
const PRODUCTS: usize = 2;

/// Returns true if products use integers, or operands that are split into two numbers.
pub(crate) fn is_of_parts(profile: &Profile) -> bool {
    let of_integers = profile.activation_codes.is_some() || profile.row_scales != RowScales::Decoded;
    of_integers || profile.operands.split().is_some()
}

/// Number of weight rows in which row scales are searched.
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
        let profile = &profile.of_product(&self.w);
        // All results of the tokens are evaluated at once if most of them are wanted.
        let is_run = wanted.len() == last + 1 - first;
        if is_run && 2 * wanted.len() > tokens.len() * self.w.rows {
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
        let profile = &profile.of_product(&self.w);
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
        let last = match (self.w.has_values_of_kernels(), self.w.dtype) {
            (true, _) => WITH_BIAS.len(),
            (false, DType::F32) => WITH_BIAS.len() - 1,
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
        let of_integers = is_of_parts(&profile.of_product(&self.w));
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

    /// Evaluates the consecutive results in `range`, which lie in the rows of `tokens`.
    fn all(&self, profile: &Profile, tokens: Range<usize>, range: Range<usize>) -> Vec<ExactValue> {
        let rows = self.w.rows;
        let (panels, each) = (rows.div_ceil(PANEL), tokens.len() * PANEL * self.w.cols / PRODUCTS);
        let outputs = |panel: usize| panel * PANEL..rows.min((panel + 1) * PANEL);
        let panels = match self.by_columns(profile, tokens.clone()) {
            Some(tiled) => parallel::map(panels, each, |panel| {
                let mut exacts = Vec::with_capacity(tokens.len() * PANEL);
                tiled.at(outputs(panel), &mut |_, _, row| exacts.extend_from_slice(row));
                exacts
            }),
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
        // Kernels that quantise inputs may multiply them by their factors first, without rounding.
        let is_scaled =
            |origin| node_of(origin).is_some_and(|node| node.operation::<GatedProduct>().is_some());
        let rows = 0..self.x.data().len() / width;
        // A scale that the whole pass shares depends on all of its values.
        let is_of_pass = profile.activation_codes.is_some_and(|codes| matches!(codes.group, CodeGroup::Pass));
        let read = if is_of_pass { rows.clone() } else { tokens.clone() };
        let part = read.start * width..read.end * width;
        let x = match profile.fused != FusedResults::Nothing && self.x.origins().iter().any(is_scaled) {
            true => InputTensor::read(&self.x, profile, part),
            false => InputTensor::of_part(&self.x, profile, part),
        };
        let codes = SharedCodes::of(&self.x, &x, rows, &self.w, profile);
        let operand = |token: usize| codes.operand(x.part((tokens.start + token) * width, width));
        parallel::map(tokens.len(), 4 * width, operand)
    }

    /// Decodes stored weights and rounds them as the profile's engine does.
    fn widen(profile: &Profile, stored: &[f32], weights: &mut [f64]) {
        weights.iter_mut().zip(stored).for_each(|(weight, &x)| *weight = x.into());
        for float in [profile.weights, profile.unit_of_products()] {
            if float != Float::F32 {
                weights.iter_mut().for_each(|weight| *weight = float.round(*weight));
            }
        }
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
        let (mut decoded, mut rows) = (vec![0.0f32; w.cols], vec![0.0; outputs.len() * w.cols]);
        for (output, row) in outputs.zip(rows.chunks_mut(w.cols)) {
            decode_matrix_row(w, output, &mut decoded);
            Linear::widen(&self.profile, &decoded, row);
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
    fn at(&self, columns: Range<usize>, found: &mut dyn FnMut(usize, usize, &[ExactValue])) {
        let panels = (CACHED / (self.linear.w.cols * PANEL).max(1)).clamp(1, 3);
        let end = columns.end;
        for first in columns.step_by(panels * PANEL) {
            self.of_panels(first..end.min(first + panels * PANEL), found);
        }
    }
}

/// Number of weights in panels that are evaluated together, so that they stay in the cache.
const CACHED: usize = 1 << 17;

/// Number of blocks of four tokens that are evaluated together.
const FOURS: usize = 16;

impl TiledProducts<'_> {
    /// Evaluates the columns of a few panels, for some tokens at a time.
    fn of_panels(&self, columns: Range<usize>, found: &mut dyn FnMut(usize, usize, &[ExactValue])) {
        let (width, tokens) = (columns.len(), self.tokens.len());
        let outputs = columns.clone().step_by(PANEL).map(|first| first..columns.end.min(first + PANEL));
        let panels: Vec<_> = outputs.map(|outputs| (self.panel(outputs.clone()), outputs)).collect();
        let mut exacts = vec![ExactValue::default(); FOURS * SIDE * width];
        for (part, fours) in self.fours.chunks(FOURS).enumerate() {
            let first = part * FOURS * SIDE;
            let exacts = &mut exacts[..(tokens - first).min(FOURS * SIDE) * width];
            for (panel, outputs) in &panels {
                for (index, (four, exacts)) in fours.iter().zip(exacts.chunks_mut(SIDE * width)).enumerate() {
                    let tile = PanelTile::new(panel, four);
                    for (row, exacts) in exacts.chunks_mut(width).enumerate() {
                        let exacts = &mut exacts[outputs.start - columns.start..][..outputs.len()];
                        self.of_row(&tile, row, first + index * SIDE + row, outputs.clone(), exacts);
                    }
                }
            }
            for (token, exacts) in (first..).zip(exacts.chunks(width)) {
                found(token, columns.start, exacts);
            }
        }
    }

    fn of_row(
        &self,
        tile: &PanelTile,
        row: usize,
        token: usize,
        outputs: Range<usize>,
        exacts: &mut [ExactValue],
    ) {
        let n = self.linear.w.cols.div_ceil(self.profile.lanes) as f64;
        let (sums, squares) = tile.row(row);
        added(n, sums, &squares, exacts);
        self.finish(token, outputs, exacts);
    }

    /// Adds biases. Values that the tile does not decide are evaluated separately.
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
