//! Q6_K: 256 codes of 6 bits, −32 to 31; each 16 have a scale of 8 bits, whose own scale is `f16`.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::large::{self, Large};
use super::stored::{Half, Stored};

/// 256 values in 210 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Block {
    /// The lower four bits: of each half of the values, 64 bytes have the first 64 below the last 64.
    pub(super) low: [u8; 128],
    /// The upper two bits, as two-bit codes lie.
    pub(super) high: [u8; 64],
    pub(super) scales: [i8; 16],
    pub(super) scale: Half,
}

impl Stored for Block {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    fn decode(&self, out: &mut [f32]) {
        large::decode(self, out);
    }
}

impl Large for Block {
    const OFFSET: i8 = 32;

    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn scales(&self) -> [i8; 16] {
        self.scales
    }

    fn codes(&self) -> [i8; 256] {
        std::array::from_fn(|index| {
            let (half, row, column) = (index / 128, index / 32 % 4, index % 32);
            let low = self.low[64 * half + 32 * (row % 2) + column] >> (4 * (row / 2)) & 0x0F;
            let high = self.high[32 * half + column] >> (2 * row) & 3;
            (low | high << 4) as i8
        })
    }
}
