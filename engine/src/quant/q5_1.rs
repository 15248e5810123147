//! Q5_1: an `f16` scale, an `f16` minimum and 32 codes of 5 bits.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, blocks_mut};
use super::q_asymmetric::{self, AsymmetricBlock};
use super::q5_0;

/// A stored block: 32 values in 24 bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ5_1 {
    pub(super) scale: StoredF16,
    pub(super) min: StoredF16,
    /// Highest bit of each code: bit i belongs to value i.
    pub(super) high: [u8; 4],
    pub(super) nibbles: [u8; 16],
}

impl QuantBlock for BlockQ5_1 {
    const LEN: usize = 32;

    fn is_finite(&self) -> bool {
        self.scale.is_finite() && self.min.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        q_asymmetric::decode(self, out);
    }
}

impl AsymmetricBlock for BlockQ5_1 {
    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn min(&self) -> f32 {
        self.min.to_f32()
    }

    fn codes(&self) -> [u8; 32] {
        q5_0::codes(self.high, &self.nibbles)
    }
}

/// Quantises rows of a KV cache.
pub(super) fn quantise(row: &[f32], out: &mut [u8]) {
    for (block, values) in blocks_mut::<BlockQ5_1>(out).iter_mut().zip(row.as_chunks::<32>().0) {
        let (scale, min, codes) = q_asymmetric::quantised(values, 31);
        let (high, nibbles) = q5_0::stored(codes);
        *block = BlockQ5_1 { scale, min, high, nibbles };
    }
}
