//! IQ4_NL: an `f16` scale and 32 indices of 4 bits into a table of values that are closer together near zero.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, nibbles};
use super::q_symmetric::{self, SymmetricBlock};

/// Values of the 16 indices (ggml's `kvalues_iq4nl`).
pub(super) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A stored block: 32 values in 18 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockIq4Nl {
    pub(super) scale: StoredF16,
    pub(super) nibbles: [u8; 16],
}

impl QuantBlock for BlockIq4Nl {
    const LEN: usize = 32;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    fn decode(&self, out: &mut [f32]) {
        q_symmetric::decode(self, out);
    }
}

impl SymmetricBlock for BlockIq4Nl {
    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn codes(&self) -> [i8; 32] {
        nibbles(&self.nibbles).map(|index| VALUES[usize::from(index)])
    }
}
