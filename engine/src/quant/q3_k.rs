//! Q3_K: 256 codes of 3 bits, −4 to 3. Each 16 have a 6-bit scale, −32 to 31, multiplied by one `f16` scale.

use std::array::from_fn;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16};
use super::k_quants::{self, KQuantBlock, by_rows};
use super::q2_k::two_bits;

/// A stored block: 256 values in 110 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ3K {
    /// Highest bit of each code: bit r of byte c belongs to value 32r + c.
    pub(super) high: [u8; 32],
    pub(super) codes: [u8; 64],
    pub(super) scales: [u8; 12],
    pub(super) scale: StoredF16,
}

impl QuantBlock for BlockQ3K {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl KQuantBlock for BlockQ3K {
    const OFFSET: i8 = 0;

    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    /// Unpacks the scales. The first bytes contain the lower four bits: scales 0 to 7 in the low half of each byte, 8
    /// to 15 in the high half. The next bytes contain the upper two bits, those of scales 0 to 3 in the lowest bits.
    fn scales(&self) -> [i8; 16] {
        from_fn(|group| {
            let low = self.scales[group % 8] >> (4 * (group / 8)) & 0x0F;
            let high = self.scales[8 + group % 4] >> (2 * (group / 4)) & 3;
            (low | high << 4) as i8 - 32
        })
    }

    fn codes(&self) -> [i8; 256] {
        let low = two_bits(&self.codes);
        let low = low.as_chunks::<32>().0;
        by_rows(|row| from_fn(|column| low[row][column] + 4 * (self.high[column] >> row & 1) as i8 - 4))
    }
}
