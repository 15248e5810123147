//! Q1_0: 128 codes −1 or 1 in one bit each, and an `f16` scale.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::wide_block::{self, WideBlock};

/// A stored block: 128 values in 18 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ1_0 {
    pub(super) scale: StoredF16,
    /// One bit per value, the first value in the lowest bit. A set bit means 1, a clear bit −1.
    pub(super) bits: [[u8; 4]; 4],
}

impl QuantBlock for BlockQ1_0 {
    const LEN: usize = 128;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        wide_block::decode(self, out);
    }
}

impl WideBlock<4> for BlockQ1_0 {
    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn codes(&self, part: usize) -> [i8; 32] {
        let bits = u32::from_le_bytes(self.bits[part]);
        std::array::from_fn(|at| if bits >> at & 1 == 1 { 1 } else { -1 })
    }
}
