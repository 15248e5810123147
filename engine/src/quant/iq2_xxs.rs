//! IQ2_XXS: each 8 values are an entry of a grid of 256 entries, with signs in 7 bits. Each 32 values have a 4-bit
//! scale. The block has an `f16` scale.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::grid_block::{GridBlock, odd, signed_eights, signs_of_word};
use super::{grids, k_quants};

/// A stored block: 256 values in 66 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockIq2Xxs {
    scale: StoredF16,
    /// For each 32 values: four indices, and a word with the signs and, in its highest 4 bits, the scale.
    rows: [[[u8; 4]; 2]; 8],
}

impl QuantBlock for BlockIq2Xxs {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl GridBlock for BlockIq2Xxs {
    const FACTOR: f32 = 0.125;

    fn block_scale(&self) -> StoredF16 {
        self.scale
    }

    fn group_scales(&self) -> [i8; 16] {
        std::array::from_fn(|group| odd(self.rows[group / 2][1][3] >> 4))
    }

    fn row(&self, row: usize) -> [i8; 32] {
        let [indices, word] = self.rows[row];
        let entries = indices.map(|index| &grids::IQ2_XXS[usize::from(index)]);
        signed_eights(entries, signs_of_word(u32::from_le_bytes(word)))
    }
}
