//! IQ1_M: each 8 values are an entry of a ternary grid of 2048 entries, shifted by ±1/8. Each 16 values have a
//! 3-bit scale. The block has an `f16` scale, whose bits are spread over the words that store the 3-bit scales.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::grid_block::{GridBlock, ShiftedGridBlock, odd};
use super::{grids, k_quants};

/// A stored block: 256 values in 56 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockIq1M {
    /// Lower 8 bits of each index.
    low: [[u8; 4]; 8],
    /// For each 8 values, 4 bits: the upper 3 bits of the index, and the sign of the shift.
    high: [[u8; 2]; 8],
    /// For each 64 values: four scales of 3 bits, and 4 bits of the block's scale, the lowest 4 bits in the first word.
    words: [[u8; 2]; 4],
}

impl BlockIq1M {
    /// Returns the upper bits of the index of 8 values, and the sign of their shift.
    fn high(&self, row: usize, eighth: usize) -> u8 {
        self.high[row][eighth / 2] >> (4 * (eighth % 2)) & 0x0F
    }
}

impl QuantBlock for BlockIq1M {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.block_scale().is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl GridBlock for BlockIq1M {
    const FACTOR: f32 = 0.125;

    fn block_scale(&self) -> StoredF16 {
        let [a, b, c, d] = self.words.map(|word| word[1] >> 4);
        StoredF16::from_bytes([a | b << 4, c | d << 4])
    }

    fn group_scales(&self) -> [i8; 16] {
        std::array::from_fn(|group| {
            let word = u16::from_le_bytes(self.words[group / 4]);
            odd((word >> (3 * (group % 4))) as u8 & 7)
        })
    }

    fn row(&self, row: usize) -> [i8; 32] {
        self.shifted_row(row)
    }
}

impl ShiftedGridBlock for BlockIq1M {
    fn entries(&self, row: usize) -> [i8; 32] {
        let entry = |eighth: usize| {
            let high = usize::from(self.high(row, eighth) & 7);
            grids::IQ1_S[usize::from(self.low[row][eighth]) | high << 8]
        };
        zerocopy::transmute!(std::array::from_fn::<_, 4, _>(entry))
    }

    fn shifts(&self, row: usize) -> [i8; 4] {
        std::array::from_fn(|eighth| if self.high(row, eighth) & 8 == 0 { 1 } else { -1 })
    }
}
