//! Q6_K: 256 codes of 6 bits, −32 to 31. Each 16 have an 8-bit scale, multiplied by one `f16` scale.

use std::array::from_fn;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, part};
use super::k_quants::{self, KQuantBlock, by_rows};
use super::q2_k::two_bits;

/// A stored block: 256 values in 210 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ6K {
    /// Lower four bits of the codes: 64 bytes for each half of the values, with the first 64 values in the low 4 bits
    /// and the last 64 in the high 4 bits.
    pub(super) low: [u8; 128],
    /// Upper two bits, in the layout of 2-bit codes ([`crate::quant::q2_k::two_bits`]).
    pub(super) high: [u8; 64],
    pub(super) scales: [i8; 16],
    pub(super) scale: StoredF16,
}

impl QuantBlock for BlockQ6K {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl KQuantBlock for BlockQ6K {
    const OFFSET: i8 = 32;

    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn scales(&self) -> [i8; 16] {
        self.scales
    }

    fn codes(&self) -> [i8; 256] {
        let high = two_bits(&self.high);
        let high = high.as_chunks::<32>().0;
        by_rows(|row| {
            let low = part::<32, _>(&self.low, row / 4 * 2 + row % 2);
            let shift = row % 4 / 2 * 4;
            from_fn(|column| (low[column] >> shift & 0x0F) as i8 | high[row][column] << 4)
        })
    }
}
