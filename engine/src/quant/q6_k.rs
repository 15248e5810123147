//! Q6_K: 256 codes of 6 bits, −32 to 31; each 16 have a scale of 8 bits, whose own scale is `f16`.

use std::array::from_fn;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, part};
use super::k_quants::{self, KQuantBlock, by_rows};
use super::q2_k::two_bits;

/// 256 values in 210 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ6K {
    /// The lower four bits: of each half of the values, 64 bytes have the first 64 below the last 64.
    pub(super) low: [u8; 128],
    /// The upper two bits, as two-bit codes lie.
    pub(super) high: [u8; 64],
    pub(super) scales: [i8; 16],
    pub(super) scale: StoredF16,
}

impl QuantBlock for BlockQ6K {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

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
