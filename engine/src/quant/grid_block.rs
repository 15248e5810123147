//! Blocks of 256 values whose codes are entries of a [grid](super::grids). Each index selects 4 or 8 numbers, whose
//! signs are stored separately. Each 16 values have an odd scale. Activations are Q8_K.

use super::block::{QuantBlock, StoredF16, blocks};
use super::k_quants::{KQuantBlock, by_rows, weighted};
use super::lanes::LaneSums;
use super::q8_k;

/// Block of grid entries.
pub(super) trait GridBlock: QuantBlock {
    /// Power of two by which the products are multiplied.
    const FACTOR: f32;

    /// Returns the scale of the whole block.
    fn block_scale(&self) -> StoredF16;

    /// Returns the scale of each 16 values.
    fn group_scales(&self) -> [i8; 16];

    /// Returns the codes of 32 values, starting at value 32 · `row`.
    fn row(&self, row: usize) -> [i8; 32];
}

impl<B: GridBlock> KQuantBlock for B {
    const OFFSET: i8 = 0;
    const FACTOR: f32 = B::FACTOR;

    fn scale(&self) -> f32 {
        self.block_scale().to_f32()
    }

    fn scales(&self) -> [i8; 16] {
        self.group_scales()
    }

    fn codes(&self) -> [i8; 256] {
        by_rows(|row| self.row(row))
    }
}

/// Block of ternary grid entries, each shifted by ±1/8: a code is eight times the entry, plus the shift's sign.
pub(super) trait ShiftedGridBlock: GridBlock {
    /// Returns the grid entries of 32 values, starting at value 32 · `row`: −1, 0 or 1.
    fn entries(&self, row: usize) -> [i8; 32];

    /// Returns the sign of the shift for each 8 of the 32 values.
    fn shifts(&self, row: usize) -> [i8; 4];

    /// Returns the sign of the shift of each of the 32 values.
    fn shift_row(&self, row: usize) -> [i8; 32] {
        let shifts = self.shifts(row);
        std::array::from_fn(|at| shifts[at / 8])
    }

    /// Returns the codes; implements [`GridBlock::row`].
    fn shifted_row(&self, row: usize) -> [i8; 32] {
        let (entries, shifts) = (self.entries(row), self.shift_row(row));
        std::array::from_fn(|at| 8 * entries[at] + shifts[at])
    }
}

/// Computes the dot product of IQ1_S for fewer than eight tokens. The products with the shifts are added in a
/// single sum.
pub(super) fn dot_with_shifts_in_one<B: ShiftedGridBlock>(weights: &[u8], activations: &[u8]) -> f32 {
    let (mut lanes, mut shifts) = (LaneSums::default(), 0.0f32);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let [entries, of_shifts] = entry_and_shift_sums(w, a);
        let scale = a.scale() * w.scale();
        lanes.add_scaled(scale, entries);
        shifts = scale.mul_add(of_shifts.iter().sum::<i32>() as f32, shifts);
    }
    <B as GridBlock>::FACTOR.mul_add(shifts, lanes.sum())
}

/// Computes the dot product of IQ1_M for fewer than eight tokens. The products with the shifts are added in eight
/// separate lanes.
pub(super) fn dot_with_shifts_in_eight<B: ShiftedGridBlock>(weights: &[u8], activations: &[u8]) -> f32 {
    let mut lanes = [LaneSums::default(); 2];
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let scale = a.scale() * w.scale();
        for (lanes, sums) in lanes.iter_mut().zip(entry_and_shift_sums(w, a)) {
            lanes.add_scaled(scale, sums);
        }
    }
    <B as GridBlock>::FACTOR.mul_add(lanes[1].sum(), lanes[0].sum())
}

fn entry_and_shift_sums<B: ShiftedGridBlock>(w: &B, a: &q8_k::BlockQ8K) -> [[i32; 8]; 2] {
    let rows = [by_rows(|row| w.entries(row)), by_rows(|row| w.shift_row(row))];
    rows.map(|codes| weighted(&codes, w.group_scales(), a))
}

/// Returns a row of 32 signed numbers from four grid entries of 8 numbers each.
pub(super) fn signed_eights(entries: [&[i8; 8]; 4], signs: [u8; 4]) -> [i8; 32] {
    std::array::from_fn(|at| sign(entries[at / 8][at % 8], signs[at / 8], at % 8))
}

/// Returns a row of 32 signed numbers from eight grid entries of 4 numbers each.
pub(super) fn signed_fours(entries: [&[i8; 4]; 8], signs: [u8; 4]) -> [i8; 32] {
    std::array::from_fn(|at| sign(entries[at / 4][at % 4], signs[at / 8], at % 8))
}

fn sign(number: i8, signs: u8, bit: usize) -> i8 {
    if signs >> bit & 1 == 1 { -number } else { number }
}

/// Returns eight signs that are stored in 7 bits. The eighth follows because the number of minus signs is even.
pub(super) fn even_signs(bits: u8) -> u8 {
    bits & 0x7F | (bits & 0x7F).count_ones().wrapping_shl(7) as u8
}

/// Returns the signs of 32 values, four times 7 bits of `word`.
pub(super) fn signs_of_word(word: u32) -> [u8; 4] {
    std::array::from_fn(|eighth| even_signs((word >> (7 * eighth) & 0x7F) as u8))
}

/// Returns the odd scale 2 · code + 1.
pub(super) fn odd(code: u8) -> i8 {
    (2 * code + 1) as i8
}

/// Returns the scale of each 16 values from 4-bit codes, two codes in a byte, the first in the lower bits.
pub(super) fn scales_of_nibbles(bytes: [u8; 8]) -> [i8; 16] {
    std::array::from_fn(|group| odd(bytes[group / 2] >> (4 * (group % 2)) & 0x0F))
}
