//! MXFP4 (OCP Microscaling Formats 1.0): a power of two as the scale, and 32 numbers of 4 bits (sign, two exponent
//! bits, one mantissa bit). As in ggml, the numbers are doubled to integers, and the scale is halved.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, nibbles};
use super::q_symmetric::{self, SymmetricBlock};

/// Value of each 4-bit number, doubled.
pub(super) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Exponent byte that means NaN in the specification, and 2^128 in ggml.
const NAN: u8 = 0xFF;

/// A stored block: 32 values in 17 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockMxfp4 {
    exponent: u8,
    pub(super) nibbles: [u8; 16],
}

impl QuantBlock for BlockMxfp4 {
    const LEN: usize = 32;

    fn is_finite(&self) -> bool {
        self.exponent != NAN
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        q_symmetric::decode(self, out);
    }
}

impl SymmetricBlock for BlockMxfp4 {
    /// Returns 2^(exponent − 128). The two smallest scales are denormal.
    fn scale(&self) -> f32 {
        match self.exponent {
            denormal @ 0..2 => f32::from_bits(0x0020_0000 << denormal),
            exponent => f32::from_bits(u32::from(exponent - 1) << 23),
        }
    }

    fn codes(&self) -> [i8; 32] {
        nibbles(&self.nibbles).map(|number| VALUES[usize::from(number)])
    }
}
