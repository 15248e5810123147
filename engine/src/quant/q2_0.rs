//! Q2_0: 64 codes −1, 0, 1 or 2 in two bits each, and an `f16` scale.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::wide_block::{self, WideBlock};

/// A stored block: 64 values in 18 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ2_0 {
    scale: StoredF16,
    /// Four codes per byte, each increased by 1, the first in the lowest bits.
    fours: [[u8; 8]; 2],
}

impl QuantBlock for BlockQ2_0 {
    const LEN: usize = 64;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        wide_block::decode(self, out);
    }
}

impl WideBlock<2> for BlockQ2_0 {
    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn codes(&self, part: usize) -> [i8; 32] {
        std::array::from_fn(|at| (self.fours[part][at / 4] >> (2 * (at % 4)) & 3) as i8 - 1)
    }
}
