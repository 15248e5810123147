//! Q4_K: 256 codes of 4 bits; each 32 have a scale and a minimum of 6 bits, whose own scales are `f16`.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, part};
use super::k_quants::{self, KQuantBlock, KQuantBlockWithMins, by_rows};

/// 256 values in 144 bytes.
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

/// Scales and minima of the eight groups, 6 bits each: whole those of the first four, the others' lower four bits in
/// the last bytes, and their upper two above the first ones.
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

/// Repeats the value of each 32 elements for each 16.
pub(super) fn twice(groups: [u8; 8]) -> [i8; 16] {
    std::array::from_fn(|group| groups[group / 2] as i8)
}

/// Codes of 4 bits: 32 bytes hold 32 values in their lower halves and the next 32 in the upper ones.
pub(super) fn nibbles(bytes: &[u8; 128]) -> [i8; 256] {
    by_rows(|row| part::<32, _>(bytes, row / 2).map(|byte| (byte >> (4 * (row % 2)) & 0x0F) as i8))
}
