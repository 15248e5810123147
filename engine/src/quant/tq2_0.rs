//! TQ2_0: 256 codes −1, 0 or 1 in 2 bits each, and an `f16` scale. (The fourth code, 2, is never written.)

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::k_quants::{self, KQuantBlock};
use super::q2_k::two_bits;

/// A stored block: 256 values in 66 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockTq2_0 {
    pub(super) codes: [u8; 64],
    pub(super) scale: StoredF16,
}

impl QuantBlock for BlockTq2_0 {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl KQuantBlock for BlockTq2_0 {
    const OFFSET: i8 = 1;

    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn scales(&self) -> [i8; 16] {
        [1; 16]
    }

    fn codes(&self) -> [i8; 256] {
        two_bits(&self.codes)
    }
}
