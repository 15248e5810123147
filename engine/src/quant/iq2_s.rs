//! IQ2_S: each 8 values are an entry of a grid of 1024 entries, with 8 sign bits. Each 16 values have a 4-bit
//! scale. The block has an `f16` scale.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::grid_block::{GridBlock, scales_of_nibbles, signed_eights};
use super::{grids, k_quants};

/// A stored block: 256 values in 82 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockIq2S {
    scale: StoredF16,
    /// Lower 8 bits of each index.
    low: [[u8; 4]; 8],
    signs: [[u8; 4]; 8],
    /// Upper 2 bits of the four indices of 32 values, the first index in the lowest bits.
    high: [u8; 8],
    scales: [u8; 8],
}

impl QuantBlock for BlockIq2S {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl GridBlock for BlockIq2S {
    const FACTOR: f32 = 0.125;

    fn block_scale(&self) -> StoredF16 {
        self.scale
    }

    fn group_scales(&self) -> [i8; 16] {
        scales_of_nibbles(self.scales)
    }

    fn row(&self, row: usize) -> [i8; 32] {
        let entry = |eighth: usize| {
            let high = self.high[row] >> (2 * eighth) & 3;
            &grids::IQ2_S[usize::from(self.low[row][eighth]) | usize::from(high) << 8]
        };
        signed_eights(std::array::from_fn(entry), self.signs[row])
    }
}
