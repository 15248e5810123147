//! TQ2_0: 256 codes −1, 0 or 1 in 2 bits each, and an `f16` scale. (The fourth code is 2, and never written.)

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::large::{self, Large};
use super::q2_k::two_bits;
use super::stored::{Half, Stored};

/// 256 values in 66 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Block {
    pub(super) codes: [u8; 64],
    pub(super) scale: Half,
}

impl Stored for Block {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    fn decode(&self, out: &mut [f32]) {
        large::decode(self, out);
    }
}

impl Large for Block {
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
