//! IQ1_S: each 8 values are an entry of a ternary grid of 2048 entries. Each 32 values have a 3-bit scale and a
//! shift of ±1/8. The block has an `f16` scale.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::grid_block::{GridBlock, ShiftedGridBlock, odd};
use super::{grids, k_quants};

/// A stored block: 256 values in 50 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockIq1S {
    scale: StoredF16,
    /// Lower 8 bits of each index.
    low: [[u8; 4]; 8],
    /// For each 32 values: the upper 3 bits of four indices, the scale in 3 bits, and the sign of the shift.
    words: [[u8; 2]; 8],
}

impl BlockIq1S {
    fn word(&self, row: usize) -> u16 {
        u16::from_le_bytes(self.words[row])
    }
}

impl QuantBlock for BlockIq1S {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl GridBlock for BlockIq1S {
    const FACTOR: f32 = 0.125;

    fn block_scale(&self) -> StoredF16 {
        self.scale
    }

    fn group_scales(&self) -> [i8; 16] {
        std::array::from_fn(|group| odd((self.word(group / 2) >> 12) as u8 & 7))
    }

    fn row(&self, row: usize) -> [i8; 32] {
        self.shifted_row(row)
    }
}

impl ShiftedGridBlock for BlockIq1S {
    fn entries(&self, row: usize) -> [i8; 32] {
        let entry = |eighth: usize| {
            let high = usize::from(self.word(row) >> (3 * eighth) & 7);
            grids::IQ1_S[usize::from(self.low[row][eighth]) | high << 8]
        };
        zerocopy::transmute!(std::array::from_fn::<_, 4, _>(entry))
    }

    fn shifts(&self, row: usize) -> [i8; 4] {
        [if self.word(row) & 0x8000 == 0 { 1 } else { -1 }; 4]
    }
}
