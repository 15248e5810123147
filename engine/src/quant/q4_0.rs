//! Q4_0: an `f16` scale and 32 codes of 4 bits, −8 to 7.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, blocks_mut, joined, nibbles};
use super::q_symmetric::{self, SymmetricBlock};

/// A stored block: 32 values in 18 bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ4_0 {
    pub(super) scale: StoredF16,
    pub(super) nibbles: [u8; 16],
}

impl QuantBlock for BlockQ4_0 {
    const LEN: usize = 32;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        q_symmetric::decode(self, out);
    }
}

impl SymmetricBlock for BlockQ4_0 {
    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn codes(&self) -> [i8; 32] {
        nibbles(&self.nibbles).map(|code| code as i8 - 8)
    }
}

/// Quantises rows of a KV cache: the first value with the largest absolute value becomes −8.
pub(super) fn quantise(row: &[f32], out: &mut [u8]) {
    for (block, values) in blocks_mut::<BlockQ4_0>(out).iter_mut().zip(row.as_chunks::<32>().0) {
        let (scale, codes) = q_symmetric::quantised(values, 8);
        *block = BlockQ4_0 { scale, nibbles: joined(codes) };
    }
}
