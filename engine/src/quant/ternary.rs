//! Ternary matrices of bitnet.cpp: two bits per weight, one scale for the matrix, and 8-bit activations with one scale
//! per token.
//!
//! A row is a whole number of blocks of 128 weights in 32 bytes. In byte `j`, the highest two bits are weight `j`, the
//! next bits weights `32 + j`, `64 + j` and `96 + j`. The codes 0, 1, 2 mean −1, 0, 1. I2_S files store rows in this
//! format. Matrices of TL1 and TL2 files ([`DType::TL`]) and of transformers are converted when a model is loaded;
//! their last block is padded with zeros.
//!
//! The kernels of bitnet.cpp multiply codes by activations, and subtract the sum of the activations at the end. The
//! kernels for I2_S on x86 use sixteen 16-bit sums over up to 32 blocks, which can overflow and wrap in rows of
//! more than 2048 weights. The table kernels (TL1 and TL2) add without overflow.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::rounding::{to_int8, to_int32};
use super::{TernaryCodes, TernarySum};
use crate::weight::{DType, Matrix};

/// Number of weights in a block.
pub const BLOCK: usize = 128;
/// Number of bytes in a block.
pub const BLOCK_BYTES: usize = 32;

/// Number of blocks that I2_S adds in 16-bit sums. With codes of 2 and activations of 127, these sums overflow.
pub(super) const WRAPPING: usize = 32;
/// Number of blocks that 16-bit sums can add without overflow, for activations from −127 to 127.
#[cfg(target_arch = "x86_64")]
pub(super) const EXACT: usize = 16;

/// Quantised activations of a token.
#[derive(Clone, Debug, PartialEq)]
pub struct Activations {
    /// Codes `round(x · scale)`, padded with zeros to whole blocks.
    pub codes: Vec<i8>,
    /// Factor by which activations are multiplied: 127 divided by the largest absolute value.
    pub scale: f32,
    /// Sum of the codes.
    pub(crate) sum: i32,
}

/// Returns true if a type has rows in this format.
pub fn is_ternary(dtype: DType) -> bool {
    matches!(dtype, DType::I2_S | DType::TL)
}

/// Quantises a token's activations to 8 bits, for weights of a type.
///
/// For I2_S, the largest value is raised to at least 1e-5. The table kernels (TL1 and TL2) have no such limit.
pub fn quantise(weights: DType, row: &[f32]) -> Activations {
    let largest = row.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let scale = match weights {
        DType::I2_S => (127.0 / f64::from(largest).max(0.00001)) as f32,
        _ => 127.0 / largest,
    };
    let mut codes = vec![0; row.len().next_multiple_of(BLOCK)];
    match fast_codes() {
        Some(fast) => fast(row, scale, &mut codes),
        None => plain_codes(row, scale, &mut codes),
    }
    let sum = codes.iter().map(|&code| i32::from(code)).sum();
    Activations { codes, scale, sum }
}

/// Computes `round_half_even(x · scale)`, clamped to 8 bits. This portable code defines the bits.
pub fn plain_codes(row: &[f32], scale: f32, codes: &mut [i8]) {
    codes.iter_mut().zip(row).for_each(|(code, &value)| *code = to_int8(to_int32(value * scale)));
}

/// Returns the quantisation with special instructions; `None` if the machine lacks them.
pub fn fast_codes() -> Option<TernaryCodes> {
    #[cfg(target_arch = "x86_64")]
    return avx2::ternary_codes();
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

/// Decodes a row without the matrix's scale: −1, 0 and 1.
pub fn decode_row(row: &[u8], out: &mut [f32]) {
    for (bytes, out) in row.chunks(BLOCK_BYTES).zip(out.chunks_mut(BLOCK)) {
        for (index, out) in out.iter_mut().enumerate() {
            *out = f32::from(code(bytes, index)) - 1.0;
        }
    }
}

/// Returns the code of a weight in a block.
fn code(block: &[u8], index: usize) -> u8 {
    block[index % BLOCK_BYTES] >> (6 - 2 * (index / BLOCK_BYTES)) & 3
}

/// Encodes a row of weights (−1, 0 or 1), with the last block padded with zeros.
pub fn encode_row(weights: impl IntoIterator<Item = i8>, out: &mut [u8]) {
    const ZEROS: u8 = 0b01_01_01_01;
    out.fill(ZEROS);
    for (index, weight) in weights.into_iter().enumerate() {
        let (block, at) = (index / BLOCK, index % BLOCK);
        let byte = &mut out[block * BLOCK_BYTES + at % BLOCK_BYTES];
        // All codes are 1 so far; exclusive or sets the code of the weight.
        *byte ^= (1 ^ (weight + 1) as u8) << (6 - 2 * (at / BLOCK_BYTES));
    }
}

/// Returns the offset of the first byte with an invalid code. bitnet.cpp decodes such a code as 0, but its matrix
/// products use it as 2.
pub fn first_bad_code(rows: &[u8]) -> Option<usize> {
    rows.iter().position(|byte| byte & (byte >> 1) & 0b01_01_01_01 != 0)
}

/// Multiplies rows of a matrix by all tokens. Writes one column per row, concatenated.
///
/// # Panics
/// If the matrix is not ternary, or the tokens were quantised for rows of another length.
pub fn fill(w: &Matrix, rows: Range<usize>, tokens: &[Activations], columns: &mut [f32]) {
    let sum = sum(w.dtype);
    for (row, column) in rows.zip(columns.chunks_mut(tokens.len())) {
        for (out, token) in column.iter_mut().zip(tokens) {
            let codes = sum(w.row(row), &token.codes);
            *out = rescaled(w.dtype, codes, token) * w.scale();
        }
    }
}

/// Returns the product of a row before the matrix's scale.
fn rescaled(weights: DType, codes: i32, token: &Activations) -> f32 {
    match weights {
        DType::I2_S => (codes as f32 - token.sum as f32) / token.scale,
        _ => (codes - token.sum) as f32 / token.scale,
    }
}

/// Returns the fastest sum of this machine for weights of a type.
pub(crate) fn sum(weights: DType) -> TernarySum {
    fast_sum(weights).unwrap_or_else(|| plain_sum(weights))
}

/// Returns the sum with special instructions; `None` if the machine lacks them.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub fn fast_sum(weights: DType) -> Option<TernarySum> {
    #[cfg(target_arch = "x86_64")]
    return avx2::ternary_sum(weights);
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

/// Returns the portable sum, which defines the bits.
///
/// # Panics
/// If the type is not ternary.
pub fn plain_sum(weights: DType) -> TernarySum {
    match weights {
        DType::I2_S => wrapping_sum,
        DType::TL => exact_sum,
        other => panic!("{other} is not ternary"),
    }
}

fn wrapping_sum(weights: &[u8], activations: &[i8]) -> i32 {
    let groups = weights.chunks(WRAPPING * BLOCK_BYTES).zip(activations.chunks(WRAPPING * BLOCK));
    groups.map(|(weights, activations)| lanes(weights, activations).map(i32::from).iter().sum::<i32>()).sum()
}

/// Returns sixteen sums modulo 2¹⁶. Each sum covers two neighbouring bytes of every block.
fn lanes(weights: &[u8], activations: &[i8]) -> [i16; 16] {
    let mut lanes = [0i16; 16];
    for (block, activations) in weights.chunks(BLOCK_BYTES).zip(activations.chunks(BLOCK)) {
        for (index, &activation) in activations.iter().enumerate() {
            let lane = &mut lanes[index % BLOCK_BYTES / 2];
            *lane = lane.wrapping_add(i16::from(code(block, index)) * i16::from(activation));
        }
    }
    lanes
}

fn exact_sum(weights: &[u8], activations: &[i8]) -> i32 {
    let blocks = weights.chunks(BLOCK_BYTES).zip(activations.chunks(BLOCK));
    let products = blocks.flat_map(|(block, activations)| {
        let codes = activations.iter().enumerate();
        codes.map(|(index, &activation)| i32::from(code(block, index)) * i32::from(activation))
    });
    products.sum()
}
