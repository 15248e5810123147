//! TQ1_0: 256 codes −1, 0 or 1, five to a byte, and an `f16` scale.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::large::{self, Large};
use super::stored::{Half, Stored};

/// 256 values in 54 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Block {
    /// Five codes to a byte: values 0 to 159 in the first 32, to 239 in the next 16.
    pub(super) fives: [u8; 48],
    /// Four codes to a byte: the last 16 values.
    pub(super) fours: [u8; 4],
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
    const OFFSET: i8 = 1;

    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn scales(&self) -> [i8; 16] {
        [1; 16]
    }

    fn codes(&self) -> [i8; 256] {
        std::array::from_fn(|index| match index {
            0..160 => digit(self.fives[index % 32], index / 32),
            160..240 => digit(self.fives[32 + (index - 160) % 16], (index - 160) / 16),
            _ => digit(self.fours[(index - 240) % 4], (index - 240) / 4),
        })
    }
}

/// Digit `place` after the point of byte / 256 in base 3.
fn digit(byte: u8, place: usize) -> i8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let rest = byte.wrapping_mul(POWERS[place]);
    ((u16::from(rest) * 3) >> 8) as i8
}
