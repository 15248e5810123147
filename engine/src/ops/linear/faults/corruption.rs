//! Corrupted elements of a weight matrix: recomputes a row with changed bytes.
//!
//! The error of an output is, for each token, the element's error times the activation. This identifies the wrong
//! element. The wrong byte of a block is found by trying all byte values.

use std::fmt;

use half::f16;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, LinearParameters, SiteContext, rounded_to};
use crate::exact::{Float, Operands, Profile};
use crate::ops::linear::exact::Integers;
use crate::ops::linear::faults::weight::encoded;
use crate::ops::linear::faults::{PRODUCTS, input, multiplied, own};
use crate::quant::ternary::{self, is_ternary};
use crate::quant::{activation_type, decode_matrix_row, decode_row, known, quantise_row};
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Maximum number of wrong rows that are searched. A larger number of wrong rows has another cause.
const MOST_ROWS: usize = 3;

/// Minimum number of tokens needed to identify an element.
const FEWEST_TOKENS: usize = 4;

/// Largest share of an output's squared error that may remain after one element is corrected.
const LEFT: f64 = 0.25;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::WeightCorruption,
    is_local: true,
    at: PRODUCTS,
    takes: "17:33=0.25|17:byte40=0x9f",
    compute: |at, value| edited(at, &edits(value.as_word()?)?),
    read: read_edits,
    usual: Some(|at| usual_edit(at).map(|edit| ChangeValue::Word(edit.to_string())).into_iter().collect()),
    ..CatalogueEntry::PLAIN
}];

/// One change of an element or byte in a row of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Edit {
    row: usize,
    to: Replacement,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Replacement {
    /// New value of the element in this column, for plain types.
    Number(usize, f32),
    /// New value of the byte at this index of the row.
    Byte(usize, u8),
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to {
            Replacement::Number(column, number) => write!(f, "{}:{column}={number}", self.row),
            Replacement::Byte(at, byte) => write!(f, "{}:byte{at}={byte:#04x}", self.row),
        }
    }
}

/// Parses edits such as `17:33=0.25`, separated by commas.
fn edits(words: &str) -> Option<Vec<Edit>> {
    let edit = |word: &str| {
        let (row, rest) = word.split_once(':')?;
        let (place, to) = rest.split_once('=')?;
        let to = match place.strip_prefix("byte") {
            Some(at) => {
                Replacement::Byte(at.parse().ok()?, u8::from_str_radix(to.strip_prefix("0x")?, 16).ok()?)
            }
            None => Replacement::Number(place.parse().ok()?, to.parse().ok()?),
        };
        Some(Edit { row: row.trim().parse().ok()?, to })
    };
    words.split(',').map(edit).collect()
}

/// Computes the product with edited rows: each edited row is recomputed as a matrix with one row.
fn edited(at: &SiteContext, edits: &[Edit]) -> Option<Tensor> {
    let (x, product) = (input(at)?, own(at)?);
    let rows = product.w.rows;
    let mut wanted: Vec<usize> = edits.iter().map(|edit| edit.row).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let of_row = |&row: &usize| {
        let w = (row < rows).then(|| product.w.rows_from(row, 1))?;
        let mut bytes = w.row(0).to_vec();
        edits.iter().filter(|edit| edit.row == row).try_for_each(|edit| edit.make(&w, &mut bytes))?;
        let bias = product.bias.as_ref().map(|bias| vec![bias[row]]);
        multiplied(at, x, &LinearParameters { w: w.with_elements(bytes)?, bias, factor: product.factor })
    };
    let made: Vec<Tensor> = wanted.iter().map(of_row).collect::<Option<_>>()?;
    let all: Vec<&Tensor> = [at.value].into_iter().chain(&made).collect();
    Some(at.n.gathered(&all, at.value.shape(), |flat| match wanted.binary_search(&(flat % rows)) {
        Ok(index) => (1 + index, flat / rows),
        Err(_) => (0, flat),
    }))
}

impl Edit {
    /// Changes the bytes of a row as the edit states; `None` if that is impossible.
    fn make(&self, w: &Matrix, bytes: &mut [u8]) -> Option<()> {
        match self.to {
            Replacement::Byte(at, byte) => *bytes.get_mut(at)? = byte,
            Replacement::Number(column, number) => {
                let number = encoded(Float::of(w.dtype)?, number.into());
                bytes.get_mut(column * number.len()..)?.get_mut(..number.len())?.copy_from_slice(&number);
            }
        }
        Some(())
    }
}

/// Returns an edit with a large effect. For plain types, an element becomes twice the largest of its row. For block
/// types, it flips the bit that changes the fewest elements, and changes these the most.
fn usual_edit(at: &SiteContext) -> Option<Edit> {
    let w = own(at)?.w.with_scale(1.0);
    let (row, column, mut values) = (w.rows / 3, w.cols / 2, vec![0.0f32; w.cols]);
    decode_matrix_row(&w, row, &mut values);
    if Float::of(w.dtype).is_some() {
        let largest = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        return Some(Edit {
            row,
            to: Replacement::Number(column, rounded_to(1, 2.0 * f64::from(largest)) as f32),
        });
    }
    let block = RowBlock::of(&w, row, column / w.dtype.block_len(), Float::F32);
    let flips = (0..block.bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit)));
    let flipped = flips.filter_map(|(at, bit)| {
        let byte = block.bytes[at] ^ (1 << bit);
        let off = block.off(at, byte)?;
        let count = off.iter().filter(|off| **off != 0.0).count();
        let largest = off.iter().fold(0.0f64, |most, off| most.max(off.abs()));
        Some((count, -largest, Edit { row, to: Replacement::Byte(block.first + at, byte) }))
    });
    let least = flipped.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    least.map(|(.., edit)| edit)
}

/// A block of a row of a matrix, without the matrix's own scale.
struct RowBlock<'w> {
    w: &'w Matrix,
    row: usize,
    index: usize,
    /// Index of the block's first byte in the row.
    first: usize,
    bytes: &'w [u8],
    /// Type that weights are rounded to before the product.
    used: Float,
    values: Vec<f64>,
}

impl<'w> RowBlock<'w> {
    fn of(w: &'w Matrix, row: usize, index: usize, used: Float) -> Self {
        let size = w.dtype.block_bytes();
        let bytes = &w.row(row)[index * size..][..size];
        let block = Self { w, row, index, first: index * size, bytes, used, values: Vec::new() };
        Self { values: block.decoded(bytes), ..block }
    }

    fn decoded(&self, bytes: &[u8]) -> Vec<f64> {
        let w = self.w;
        let mut values = vec![0.0f32; w.dtype.block_len()];
        match w.group_len() {
            Some(group) => {
                let scales = w.scale_range(self.row..self.row + 1);
                let scale = scales[self.index / group * 4..].first_chunk().copied().map(f32::from_le_bytes);
                values[0] = f32::from(bytes[0] as i8) * scale.unwrap_or(0.0);
            }
            None if is_ternary(w.dtype) => ternary::decode_row(bytes, &mut values),
            None => decode_row(w.dtype, bytes, &mut values),
        }
        values.into_iter().map(|value| self.used.round(value.into())).collect()
    }

    /// Returns how a new byte changes each weight. `None` if no weight changes, or a weight becomes NaN or infinite.
    fn off(&self, at: usize, byte: u8) -> Option<Vec<f64>> {
        let mut bytes = self.bytes.to_vec();
        bytes[at] = byte;
        let off: Vec<f64> =
            self.decoded(&bytes).iter().zip(&self.values).map(|(new, old)| new - old).collect();
        (off.iter().all(|off| off.is_finite()) && off.iter().any(|off| *off != 0.0)).then_some(off)
    }
}

/// Finds the elements or bytes that explain a few wrong outputs.
fn read_edits(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let (Some(x), Some(product)) = (input(at), own(at)) else { return Vec::new() };
    let rows = product.w.rows;
    let errors: Vec<f64> =
        at.value.data().iter().zip(theirs).map(|(&own, theirs)| theirs - f64::from(own)).collect();
    let wrong = wrong_rows(&errors, rows);
    if wrong.is_empty() || x.rows() < FEWEST_TOKENS || errors.iter().any(|error| error.is_nan()) {
        return Vec::new();
    }
    let used = Profile::of(at.n.numerics()).weights;
    let factor = effective(product.factor) * f64::from(product.w.scale());
    let w = &product.w.clone().with_scale(1.0);
    let reading = CorruptionSearch { w, x: operands(at, x, w), factor, used };
    let of_row = |&row: &usize| {
        let bias = product.bias.as_ref().map_or(0.0, |bias| f64::from(bias[row]));
        // Errors are measured from our result before rounding.
        let own = reading.own(row);
        let theirs = theirs.iter().skip(row).step_by(rows);
        let errors: Vec<f64> = theirs.zip(&own).map(|(theirs, own)| theirs - own - bias).collect();
        reading.edits(row, &errors)
    };
    let found: Vec<Vec<Edit>> = wrong.iter().map(of_row).collect();
    match found.as_slice() {
        [one] => one.iter().map(|edit| ChangeValue::Word(edit.to_string())).collect(),
        several => {
            let first = several.iter().map(|edits| edits.first().map(Edit::to_string));
            first
                .collect::<Option<Vec<_>>>()
                .map(|edits| ChangeValue::Word(edits.join(",")))
                .into_iter()
                .collect()
        }
    }
}

/// Returns the outputs whose errors are far larger than the others'.
fn wrong_rows(errors: &[f64], rows: usize) -> Vec<usize> {
    let mut squares = vec![0.0; rows];
    errors.iter().enumerate().for_each(|(flat, error)| squares[flat % rows] += error * error);
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_unstable_by(|&a, &b| squares[b].total_cmp(&squares[a]));
    let usual = order.get(MOST_ROWS).map_or(f64::INFINITY, |&row| squares[row]);
    let mut wrong: Vec<usize> =
        order.into_iter().take(MOST_ROWS).filter(|&row| squares[row] > 16.0 * usual).collect();
    wrong.sort_unstable();
    wrong
}

/// Returns the factor of all weights of a matrix, as stored in the file.
fn effective(factor: Option<Factor>) -> f64 {
    match factor {
        Some(Factor::Multiplies(factor) | Factor::InWeights(factor)) => factor.into(),
        Some(Factor::Divides(factor)) => 1.0 / f64::from(factor),
        None => 1.0,
    }
}

/// Returns the activations, approximately as the product with the matrix reads them.
fn operands(at: &SiteContext, x: &Tensor, w: &Matrix) -> Vec<Vec<f64>> {
    let ggml = matches!(Profile::of(at.n.numerics()).operands, Operands::Ggml | Operands::GgmlButF16);
    let wide = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let of_token = |token: usize| {
        let row = x.row(token);
        if at.stage::<Integers>().is_some() {
            let codes = ternary::quantise(DType::I2_S, row);
            return codes.codes[..row.len()]
                .iter()
                .map(|&code| f64::from(code) / f64::from(codes.scale))
                .collect();
        }
        match ggml.then(|| activation_type(w.dtype)) {
            Some(dtype) if Float::of(dtype).is_none() => {
                let mut bytes =
                    vec![0; dtype.bytes_for(row.len()).expect("the row is a whole number of blocks")];
                quantise_row(dtype, row, &mut bytes);
                known(dtype, &bytes).map_or_else(|| wide(row), |known| known.values)
            }
            _ => wide(row),
        }
    };
    (0..x.rows()).map(of_token).collect()
}

/// Data for finding the elements that cause an output's errors.
struct CorruptionSearch<'r> {
    /// The matrix, without its own scale.
    w: &'r Matrix,
    /// Inputs of each token.
    x: Vec<Vec<f64>>,
    /// Factor of all products, which includes the matrix's own scale.
    factor: f64,
    /// Type that weights are rounded to before the product.
    used: Float,
}

impl CorruptionSearch<'_> {
    /// Returns our products for a row of the matrix, one for each token.
    fn own(&self, row: usize) -> Vec<f64> {
        let weights: Vec<f64> = self.row(row).into_iter().map(|w| self.used.round(w.into())).collect();
        self.x.iter().map(|x| self.times(&weights, x, 0)).collect()
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let mut values = vec![0.0; self.w.cols];
        decode_matrix_row(self.w, row, &mut values);
        values
    }

    /// Returns the edits of a row that cause these errors (one error for each token), most likely first.
    fn edits(&self, row: usize, errors: &[f64]) -> Vec<Edit> {
        let all: f64 = errors.iter().map(|error| error * error).sum();
        let mut elements: Vec<(f64, usize, f64)> = (0..self.w.cols)
            .map(|column| {
                let (rest, by) = fitted(errors, self.x.iter().map(|x| self.factor * x[column]));
                (rest / all, column, by)
            })
            .filter(|(rest, ..)| *rest < LEFT)
            .collect();
        elements.sort_by(|a, b| a.0.total_cmp(&b.0));
        elements.truncate(3);
        match Float::of(self.w.dtype) {
            Some(float) => {
                let edits = |&(rest, column, by): &(f64, usize, f64)| {
                    let squares: f64 = self.x.iter().map(|x| (self.factor * x[column]).powi(2)).sum();
                    let sigma = (rest * all / (errors.len() - 1) as f64 / squares).sqrt();
                    let numbers = self.numbers(self.row(row)[column], by, sigma, float);
                    numbers
                        .into_iter()
                        .map(move |number| Edit { row, to: Replacement::Number(column, number) })
                };
                elements.iter().flat_map(edits).collect()
            }
            None => self.bytes(row, errors, elements.into_iter().map(|(_, column, _)| column)),
        }
    }

    /// Returns candidates for the true value of a number that differs from `own` by `by`, within `sigma`: results of a
    /// flipped bit, and numbers with few digits. Returns both kinds if a smaller type cannot distinguish them.
    fn numbers(&self, own: f32, by: f64, sigma: f64, stored: Float) -> Vec<f32> {
        let read = self.used.round(own.into()) + by;
        let slack = 4.0 * sigma + 1e-6 * read.abs().max(own.abs().into());
        let flipped = |bit: u32| match stored {
            Float::F16 => f16::from_bits(f16::from_f32(own).to_bits() ^ (1 << bit)).to_f32(),
            Float::Bf16 => f32::from_bits(own.to_bits() ^ (1 << (bit + 16))),
            _ => f32::from_bits(own.to_bits() ^ (1 << bit)),
        };
        let bits = if stored == Float::F32 { 32 } else { 16 };
        let used = |number: f32| self.used.round(stored.round(number.into()));
        let is_near = |number: &f32| (used(*number) - read).abs() <= slack;
        let of_bits = [-own, 0.0].into_iter().chain((0..bits).rev().map(flipped)).find(is_near);
        let of_digits = (1..=6).map(|digits| rounded_to(digits, read) as f32).find(is_near);
        let mut numbers: Vec<f32> = of_bits.into_iter().chain(of_digits).collect();
        numbers.dedup();
        numbers.truncate(if self.used == Float::F32 { 1 } else { 2 });
        if numbers.is_empty() { vec![used(read as f32) as f32] } else { numbers }
    }

    /// Tries every other value of every byte in the blocks of these columns, and in a block whose scale may differ.
    /// Returns the edits that fit best.
    fn bytes(&self, row: usize, errors: &[f64], columns: impl Iterator<Item = usize>) -> Vec<Edit> {
        let len = self.w.dtype.block_len();
        let count = self.w.row(row).len() / self.w.dtype.block_bytes();
        let of_scale = (0..count).min_by(|&a, &b| {
            let rest = |index: usize| {
                let block = RowBlock::of(self.w, row, index, self.used);
                fitted(errors, self.x.iter().map(|x| self.times(&block.values, x, index * len))).0
            };
            rest(a).total_cmp(&rest(b))
        });
        let mut blocks: Vec<usize> = columns.map(|column| column / len).chain(of_scale).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let all: f64 = errors.iter().map(|error| error * error).sum();
        let mut found: Vec<(f64, Edit)> = Vec::new();
        for block in blocks.into_iter().map(|index| RowBlock::of(self.w, row, index, self.used)) {
            let bytes = (0..block.bytes.len()).flat_map(|at| (0..=255).map(move |byte| (at, byte)));
            found.extend(bytes.filter_map(|(at, byte)| {
                let off = block.off(at, byte)?;
                let rest =
                    |(error, x): (&f64, &Vec<f64>)| (error - self.times(&off, x, block.index * len)).powi(2);
                let rest: f64 = errors.iter().zip(&self.x).map(rest).sum();
                (rest / all < LEFT)
                    .then_some((rest, Edit { row, to: Replacement::Byte(block.first + at, byte) }))
            }));
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        let least = found.first().map_or(0.0, |(rest, _)| *rest);
        found.into_iter().take(8).filter(|(rest, _)| *rest <= 2.0 * least).map(|(_, edit)| edit).collect()
    }

    /// Returns the dot product of a block's weights with their activations.
    fn times(&self, weights: &[f64], x: &[f64], first: usize) -> f64 {
        let sum: f64 = weights.iter().zip(&x[first.min(x.len())..]).map(|(w, x)| w * x).sum();
        self.factor * sum
    }
}

/// Fits a multiple of `x` to errors; returns the remaining squared error and the factor.
fn fitted(errors: &[f64], x: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut up, mut down, mut all) = (0.0, 0.0, 0.0);
    for (error, x) in errors.iter().zip(x) {
        up += error * x;
        down += x * x;
        all += error * error;
    }
    if down > 0.0 { ((all - up * up / down).max(0.0), up / down) } else { (all, 0.0) }
}
