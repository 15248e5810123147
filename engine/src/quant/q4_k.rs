//! Q4_K: 256 codes of 4 bits. Each 32 have a 6-bit scale and a 6-bit minimum, multiplied by two `f16` scales.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, part};
use super::k_quants::{self, KQuantBlock, KQuantBlockWithMins, by_rows};

/// A stored block: 256 values in 144 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ4K {
    pub(super) scale: StoredF16,
    pub(super) min_scale: StoredF16,
    pub(super) groups: [u8; 12],
    pub(super) nibbles: [u8; 128],
}

impl QuantBlock for BlockQ4K {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite() && self.min_scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode_with_mins(self, out);
    }
}

impl KQuantBlock for BlockQ4K {
    const OFFSET: i8 = 0;

    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn scales(&self) -> [i8; 16] {
        twice(unpack(&self.groups).0)
    }

    fn codes(&self) -> [i8; 256] {
        nibbles(&self.nibbles)
    }
}

impl KQuantBlockWithMins for BlockQ4K {
    fn min_scale(&self) -> f32 {
        self.min_scale.to_f32()
    }

    fn mins(&self) -> [i8; 16] {
        twice(unpack(&self.groups).1)
    }
}

/// Unpacks the 6-bit scales and minima of the eight groups. The lower 6 bits of the first eight bytes belong to the
/// first four groups. For the other groups, the last four bytes contain the lower four bits, and the first eight
/// bytes the upper two.
pub(super) fn unpack(bytes: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let first = |at: usize| bytes[at] & 0x3F;
    let upper = |at: usize| bytes[at] >> 6 << 4;
    let scale = |group: usize| match group {
        0..4 => first(group),
        _ => bytes[group + 4] & 0x0F | upper(group - 4),
    };
    let min = |group: usize| match group {
        0..4 => first(group + 4),
        _ => bytes[group + 4] >> 4 | upper(group),
    };
    (std::array::from_fn(scale), std::array::from_fn(min))
}

/// Returns one value for each 16 elements, from one value for each 32.
pub(super) fn twice(groups: [u8; 8]) -> [i8; 16] {
    std::array::from_fn(|group| groups[group / 2] as i8)
}

/// Unpacks 4-bit codes. 32 bytes contain 32 values in their low 4 bits, and the next 32 values in their high 4
/// bits.
pub(super) fn nibbles(bytes: &[u8; 128]) -> [i8; 256] {
    by_rows(|row| part::<32, _>(bytes, row / 2).map(|byte| (byte >> (4 * (row % 2)) & 0x0F) as i8))
}
