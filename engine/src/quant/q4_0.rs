//! Q4_0: an `f16` scale and 32 codes of 4 bits, −8 to 7.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, nibbles};
use super::q_symmetric::{self, SymmetricBlock};

/// A stored block: 32 values in 18 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
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
