//! TQ1_0: 256 codes −1, 0 or 1, five in a byte, and an `f16` scale.

use std::array::from_fn;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, part};
use super::k_quants::{self, KQuantBlock, by_rows};

/// A stored block: 256 values in 54 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockTq1_0 {
    /// Five codes in a byte: values 0 to 159 in the first 32 bytes, 160 to 239 in the next 16.
    pub(super) fives: [u8; 48],
    /// Four codes in a byte, for the last 16 values.
    pub(super) fours: [u8; 4],
    pub(super) scale: StoredF16,
}

impl BlockTq1_0 {
    /// Returns the codes of 32 values, starting at value 32 · `row`.
    pub(super) fn row(&self, row: usize) -> [i8; 32] {
        let (first, second) = (part::<32, _>(&self.fives, 0), part::<16, _>(&self.fives, 2));
        match row {
            0..5 => first.map(|byte| digit(byte, row)),
            5..7 => from_fn(|column| digit(second[column % 16], 2 * (row - 5) + column / 16)),
            _ => from_fn(|column| match column {
                0..16 => digit(second[column], 4),
                _ => digit(self.fours[column % 4], (column - 16) / 4),
            }),
        }
    }
}

impl QuantBlock for BlockTq1_0 {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl KQuantBlock for BlockTq1_0 {
    const OFFSET: i8 = 1;

    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn scales(&self) -> [i8; 16] {
        [1; 16]
    }

    fn codes(&self) -> [i8; 256] {
        by_rows(|row| self.row(row))
    }
}

/// Returns digit number `place` after the point of byte / 256, written in base 3.
fn digit(byte: u8, place: usize) -> i8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let rest = byte.wrapping_mul(POWERS[place]);
    ((u16::from(rest) * 3) >> 8) as i8
}
