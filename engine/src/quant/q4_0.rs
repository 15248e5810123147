//! Q4_0: an `f16` scale and 32 codes of 4 bits, −8 to 7.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::signed::{self, Signed};
use super::stored::{Half, Stored, nibbles};

/// 32 values in 18 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Block {
    pub(super) scale: Half,
    pub(super) nibbles: [u8; 16],
}

impl Stored for Block {
    const LEN: usize = 32;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    fn decode(&self, out: &mut [f32]) {
        signed::decode(self, out);
    }
}

impl Signed for Block {
    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn codes(&self) -> [i8; 32] {
        nibbles(&self.nibbles).map(|code| code as i8 - 8)
    }
}
