//! Q5_K: 256 codes of 5 bits. Each 32 have a 6-bit scale and a 6-bit minimum, multiplied by two `f16` scales.

use std::array::from_fn;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::k_quants::{self, KQuantBlock, KQuantBlockWithMins, by_rows};
use super::q4_k::{nibbles, twice, unpack};

/// A stored block: 256 values in 176 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ5K {
    pub(super) scale: StoredF16,
    pub(super) min_scale: StoredF16,
    pub(super) groups: [u8; 12],
    /// Highest bit of each code: bit r of byte c belongs to value 32r + c.
    pub(super) high: [u8; 32],
    pub(super) nibbles: [u8; 128],
}

impl QuantBlock for BlockQ5K {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite() && self.min_scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode_with_mins(self, out);
    }
}

impl KQuantBlock for BlockQ5K {
    const OFFSET: i8 = 0;

    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn scales(&self) -> [i8; 16] {
        twice(unpack(&self.groups).0)
    }

    fn codes(&self) -> [i8; 256] {
        let low = nibbles(&self.nibbles);
        let low = low.as_chunks::<32>().0;
        by_rows(|row| from_fn(|column| low[row][column] | ((self.high[column] >> row & 1) << 4) as i8))
    }
}

impl KQuantBlockWithMins for BlockQ5K {
    fn min_scale(&self) -> f32 {
        self.min_scale.to_f32()
    }

    fn mins(&self) -> [i8; 16] {
        twice(unpack(&self.groups).1)
    }
}
