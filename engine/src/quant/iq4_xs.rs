//! IQ4_XS: 256 indices into IQ4_NL's table. Each 32 values have a 6-bit scale, −32 to 31, multiplied by one `f16`
//! scale.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, nibbles};
use super::iq4_nl::VALUES;
use super::k_quants::{self, KQuantBlock, by_rows};

/// A stored block: 256 values in 136 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockIq4Xs {
    pub(super) scale: StoredF16,
    /// Upper two bits of each scale.
    pub(super) scales_high: StoredF16,
    /// Lower four bits of each scale.
    pub(super) scales_low: [u8; 4],
    pub(super) nibbles: [[u8; 16]; 8],
}

impl BlockIq4Xs {
    /// Returns the scale of each 32 values.
    pub(super) fn group_scales(&self) -> [i8; 8] {
        std::array::from_fn(|group| {
            let low = self.scales_low[group / 2] >> (4 * (group % 2)) & 0x0F;
            let high = self.scales_high.bits() >> (2 * group) & 3;
            (low | (high << 4) as u8) as i8 - 32
        })
    }
}

impl QuantBlock for BlockIq4Xs {
    const LEN: usize = 256;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        k_quants::decode(self, out);
    }
}

impl KQuantBlock for BlockIq4Xs {
    const OFFSET: i8 = 0;

    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn scales(&self) -> [i8; 16] {
        let scales = self.group_scales();
        std::array::from_fn(|group| scales[group / 2])
    }

    fn codes(&self) -> [i8; 256] {
        by_rows(|row| nibbles(&self.nibbles[row]).map(|index| VALUES[usize::from(index)]))
    }
}
