//! Scales of square blocks in a matrix that was decoded from 8-bit floats (e4m3) to plain numbers. The largest code
//! of a block is 448, which gives the block's scale.

use crate::ops::linear::faults::group_steps::{is_plain, with_numbers};
use crate::quant::decode_matrix_row;
use crate::weight::Matrix;

/// Sides of blocks that are tried, the largest first.
const SIDES: [usize; 4] = [128, 64, 32, 16];

/// Largest number of e4m3, and exponent of its smallest normal number.
const LARGEST: f64 = 448.0;
const LEAST_EXPONENT: f64 = -6.0;

/// Largest distance between a weight and a code, in steps of the code. Decoded weights may be rounded to a short
/// type.
const NEAR: f64 = 0.07;

/// The scales of a matrix's blocks.
struct SquareBlockScales {
    side: usize,
    /// Number of blocks in a row of blocks.
    width: usize,
    scales: Vec<f32>,
}

/// Swaps the two axes of the scales. `None` if the matrix has no such blocks, or if its grid of blocks is not
/// square.
pub(super) fn with_transposed_scales(w: &Matrix) -> Option<Matrix> {
    let SquareBlockScales { side, width, scales } =
        SIDES.into_iter().find_map(|side| SquareBlockScales::of(w, side))?;
    let scale = |row: usize, col: usize| scales[row * width + col];
    let is_square = scales.len() == width * width && width > 1;
    is_square.then(|| {
        with_numbers(w, |value, row, col| {
            let (row, col) = (row / side, col / side);
            value / scale(row, col) * scale(col, row)
        })
    })?
}

impl SquareBlockScales {
    /// Reads the scales of blocks with this side. `None` if a number is not a code times its block's scale.
    fn of(w: &Matrix, side: usize) -> Option<Self> {
        if !is_plain(w.dtype) || !w.rows.is_multiple_of(side) || !w.cols.is_multiple_of(side) {
            return None;
        }
        let (width, mut scales) = (w.cols / side, Vec::new());
        let mut rows = vec![0.0f32; side * w.cols];
        for first in (0..w.rows).step_by(side) {
            for (index, row) in rows.chunks_mut(w.cols).enumerate() {
                decode_matrix_row(w, first + index, row);
            }
            for block in 0..width {
                let values = rows.chunks(w.cols).flat_map(|row| &row[block * side..][..side]);
                scales.push(scale(values.copied())?);
            }
        }
        Some(Self { side, width, scales })
    }
}

/// Returns the scale of a block from its largest number. `None` if its other numbers are then not codes.
fn scale(values: impl Iterator<Item = f32> + Clone) -> Option<f32> {
    let largest = values.clone().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let scale = f64::from(largest) / LARGEST;
    let is_code = |value: f32| {
        let code = f64::from(value.abs()) / scale;
        let steps = code * 8.0 / code.log2().floor().max(LEAST_EXPONENT).exp2();
        (steps - steps.round()).abs() < NEAR
    };
    (scale > 0.0 && values.clone().all(is_code)).then_some(scale as f32)
}
