//! IQ3_XXS: each 4 values are an entry of a grid of 256 entries. Each 8 values have signs in 7 bits, and each 32
//! values have a 4-bit scale. The block has an `f16` scale.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::grid_block::{GridBlock, odd, signed_fours, signs_of_word};
use super::{grids, k_quants};

/// A stored block: 256 values in 98 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockIq3Xxs {
    scale: StoredF16,
    indices: [[u8; 8]; 8],
    /// For each 32 values: a word with the signs and, in its highest 4 bits, the scale.
    words: [[u8; 4]; 8],
}

impl QuantBlock for BlockIq3Xxs {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl GridBlock for BlockIq3Xxs {
    const FACTOR: f32 = 0.25;

    fn block_scale(&self) -> StoredF16 {
        self.scale
    }

    fn group_scales(&self) -> [i8; 16] {
        std::array::from_fn(|group| odd(self.words[group / 2][3] >> 4))
    }

    fn row(&self, row: usize) -> [i8; 32] {
        let entries = self.indices[row].map(|index| &grids::IQ3_XXS[usize::from(index)]);
        signed_fours(entries, signs_of_word(u32::from_le_bytes(self.words[row])))
    }
}
