//! Q2_K: 256 codes of 2 bits. Each 16 have a 4-bit scale and a 4-bit minimum, multiplied by two `f16` scales.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, part};
use super::k_quants::{self, KQuantBlock, KQuantBlockWithMins, by_rows};

/// A stored block: 256 values in 84 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ2K {
    /// Scale of each 16 values, with the minimum in the upper bits.
    pub(super) groups: [u8; 16],
    pub(super) codes: [u8; 64],
    pub(super) scale: StoredF16,
    pub(super) min_scale: StoredF16,
}

impl QuantBlock for BlockQ2K {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite() && self.min_scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode_with_mins(self, out);
    }
}

impl KQuantBlock for BlockQ2K {
    const OFFSET: i8 = 0;

    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn scales(&self) -> [i8; 16] {
        self.groups.map(|group| (group & 0x0F) as i8)
    }

    fn codes(&self) -> [i8; 256] {
        two_bits(&self.codes)
    }
}

impl KQuantBlockWithMins for BlockQ2K {
    fn min_scale(&self) -> f32 {
        self.min_scale.to_f32()
    }

    fn mins(&self) -> [i8; 16] {
        self.groups.map(|group| (group >> 4) as i8)
    }
}

/// Unpacks 2-bit codes. 32 bytes contain 128 values: values 0 to 31 in their lowest two bits, 32 to 63 in the next
/// two bits, and so on.
pub(super) fn two_bits(bytes: &[u8; 64]) -> [i8; 256] {
    by_rows(|row| part::<32, _>(bytes, row / 4).map(|byte| (byte >> (2 * (row % 4)) & 3) as i8))
}
