//! Groups of columns that share a scale, in a matrix that was decoded from codes and scales to plain numbers. The
//! groups and their scales are read from the distances between the numbers.

use crate::quant::decode_matrix_row;
use crate::weight::{DType, Matrix, StoredTensor};

/// Lengths of groups that are tried, largest first. A whole row is tried before all others.
const LENGTHS: [usize; 8] = [2048, 1024, 512, 256, 128, 64, 32, 16];

/// Number of rows in which a group length is tried.
const ROWS: usize = 8;

/// Largest code.
const MOST: f64 = 255.0;

/// Largest distance from an integer of a number divided by its scale. Decoded weights may be rounded to a short
/// type.
const NEAR: f64 = 0.06;

/// Possible distances between the nearest two numbers of a group, in steps. Codes with many bits leave gaps.
const GAPS: [f64; 4] = [1.0, 2.0, 3.0, 4.0];

/// The scales of a matrix's groups.
pub(super) struct GroupSteps {
    /// Number of columns that share a scale.
    len: usize,
    cols: usize,
    /// Scale of each group, row by row; 0 for a group of zeros.
    pub(super) scales: Vec<f32>,
}

impl GroupSteps {
    /// Returns true if the numbers of a matrix are codes times the scales of groups.
    pub(super) fn has(w: &Matrix) -> bool {
        length(w).is_some()
    }

    /// Reads the groups of a matrix. `None` if its numbers have no common scales.
    pub(super) fn of(w: &Matrix) -> Option<Self> {
        let len = length(w)?;
        let mut row = vec![0.0; w.cols];
        let mut scales = Vec::with_capacity(w.rows * w.cols / len);
        for index in 0..w.rows {
            decode_matrix_row(w, index, &mut row);
            for group in row.chunks(len) {
                scales.push(scale(group)?);
            }
        }
        Some(Self { len, cols: w.cols, scales })
    }

    /// Returns the number of groups of a row.
    pub(super) fn groups(&self) -> usize {
        self.cols / self.len
    }

    /// Returns the group of an element.
    pub(super) fn group(&self, row: usize, col: usize) -> usize {
        row * self.groups() + col / self.len
    }
}

/// Replaces each number. `changed` gets the number, its row and its column.
pub(super) fn with_numbers(w: &Matrix, changed: impl Fn(f32, usize, usize) -> f32) -> Option<Matrix> {
    let mut data = Vec::with_capacity(4 * w.rows * w.cols);
    let mut row = vec![0.0; w.cols];
    for index in 0..w.rows {
        decode_matrix_row(w, index, &mut row);
        let values = row.iter().enumerate();
        values.for_each(|(col, &value)| data.extend(changed(value, index, col).to_le_bytes()));
    }
    let stored = StoredTensor { dtype: DType::F32, shape: vec![w.rows, w.cols], data: data.into() };
    Some(Matrix::from_stored(&stored)?.with_activations_of(w))
}

/// Returns true for numbers without codes and scales.
pub(super) fn is_plain(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Returns the largest group length for which some rows, spread over the matrix, have scales.
fn length(w: &Matrix) -> Option<usize> {
    if !is_plain(w.dtype) {
        return None;
    }
    let mut row = vec![0.0; w.cols];
    let mut has_scales = |len: usize| {
        (0..w.rows).step_by(w.rows.div_ceil(ROWS)).all(|index| {
            decode_matrix_row(w, index, &mut row);
            row.chunks(len).all(|group| scale(group).is_some())
        })
    };
    let lengths = [w.cols]
        .into_iter()
        .chain(LENGTHS.into_iter().filter(|len| *len < w.cols && w.cols.is_multiple_of(*len)));
    lengths.into_iter().find(|len| has_scales(*len))
}

/// Returns the scale of a group: the largest number that divides all its numbers. `None` if there is none.
fn scale(group: &[f32]) -> Option<f32> {
    let mut sorted: Vec<f64> = group.iter().map(|&value| f64::from(value)).chain([0.0]).collect();
    sorted.sort_by(f64::total_cmp);
    let largest = sorted.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    if largest == 0.0 {
        return Some(0.0);
    }
    // Numbers of one code differ by their rounding alone.
    let gaps = sorted.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > largest / MOST / 4.0);
    let least = gaps.reduce(f64::min)?;
    GAPS.into_iter().find_map(|steps| fitted(&sorted, least / steps, largest))
}

/// Fits a scale to the numbers of a group by least squares. `None` if a number is not a multiple of the scale.
fn fitted(values: &[f64], step: f64, largest: f64) -> Option<f32> {
    let code = |value: f64| (value / step).round();
    let is_code = |value: &f64| (value / step - code(*value)).abs() < NEAR;
    if largest / step > MOST || !values.iter().all(is_code) {
        return None;
    }
    let products: f64 = values.iter().map(|value| value * code(*value)).sum();
    let squares: f64 = values.iter().map(|value| code(*value).powi(2)).sum();
    Some((products / squares) as f32)
}
