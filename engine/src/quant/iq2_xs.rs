//! IQ2_XS: each 8 values are an entry of a grid of 512 entries, with signs in 7 bits. Each 16 values have a 4-bit
//! scale. The block has an `f16` scale.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::grid_block::{GridBlock, even_signs, scales_of_nibbles, signed_eights};
use super::{grids, k_quants};

/// A stored block: 256 values in 74 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockIq2Xs {
    scale: StoredF16,
    /// For each 8 values: an index in the lower 9 bits, and the signs in the upper 7.
    indices: [[[u8; 2]; 4]; 8],
    scales: [u8; 8],
}

impl QuantBlock for BlockIq2Xs {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl GridBlock for BlockIq2Xs {
    const FACTOR: f32 = 0.125;

    fn block_scale(&self) -> StoredF16 {
        self.scale
    }

    fn group_scales(&self) -> [i8; 16] {
        scales_of_nibbles(self.scales)
    }

    fn row(&self, row: usize) -> [i8; 32] {
        let words = self.indices[row].map(u16::from_le_bytes);
        let entries = words.map(|word| &grids::IQ2_XS[usize::from(word & 0x1FF)]);
        signed_eights(entries, words.map(|word| even_signs((word >> 9) as u8)))
    }
}
