//! IQ3_S: each 4 values are an entry of a grid of 512 entries. Each 8 values have 8 sign bits, and each 32 values
//! have a 4-bit scale. The block has an `f16` scale.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::grid_block::{GridBlock, odd, signed_fours};
use super::{grids, k_quants};

/// A stored block: 256 values in 110 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockIq3S {
    scale: StoredF16,
    /// Lower 8 bits of each index.
    low: [[u8; 8]; 8],
    /// Highest bit of the eight indices of 32 values, the first index in the lowest bit.
    high: [u8; 8],
    signs: [[u8; 4]; 8],
    scales: [u8; 4],
}

impl QuantBlock for BlockIq3S {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl GridBlock for BlockIq3S {
    const FACTOR: f32 = 1.0;

    fn block_scale(&self) -> StoredF16 {
        self.scale
    }

    fn group_scales(&self) -> [i8; 16] {
        std::array::from_fn(|group| odd(self.scales[group / 4] >> (4 * (group / 2 % 2)) & 0x0F))
    }

    fn row(&self, row: usize) -> [i8; 32] {
        let entry = |fourth: usize| {
            let high = self.high[row] >> fourth & 1;
            &grids::IQ3_S[usize::from(self.low[row][fourth]) | usize::from(high) << 8]
        };
        signed_fours(std::array::from_fn(entry), self.signs[row])
    }
}
