//! Q5_0: an `f16` scale and 32 codes of 5 bits, −16 to 15. The highest bits of all codes are stored first.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, blocks_mut, joined, nibbles};
use super::q_symmetric::{self, SymmetricBlock};

/// A stored block: 32 values in 22 bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ5_0 {
    pub(super) scale: StoredF16,
    /// Highest bit of each code: bit i belongs to value i.
    pub(super) high: [u8; 4],
    pub(super) nibbles: [u8; 16],
}

impl QuantBlock for BlockQ5_0 {
    const LEN: usize = 32;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        q_symmetric::decode(self, out);
    }
}

impl SymmetricBlock for BlockQ5_0 {
    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn codes(&self) -> [i8; 32] {
        codes(self.high, &self.nibbles).map(|code| code as i8 - 16)
    }
}

/// Unpacks 5-bit codes, 0 to 31.
pub(super) fn codes(high: [u8; 4], low: &[u8; 16]) -> [u8; 32] {
    let (low, high) = (nibbles(low), u32::from_le_bytes(high));
    std::array::from_fn(|index| low[index] | ((high >> index & 1) << 4) as u8)
}

/// Quantises rows of a KV cache: the first value with the largest absolute value becomes −16.
pub(super) fn quantise(row: &[f32], out: &mut [u8]) {
    for (block, values) in blocks_mut::<BlockQ5_0>(out).iter_mut().zip(row.as_chunks::<32>().0) {
        let (scale, codes) = q_symmetric::quantised(values, 16);
        let (high, nibbles) = stored(codes);
        *block = BlockQ5_0 { scale, high, nibbles };
    }
}

/// Packs 5-bit codes, 0 to 31.
pub(super) fn stored(codes: [u8; 32]) -> ([u8; 4], [u8; 16]) {
    let high: u32 = codes.iter().rev().fold(0, |bits, code| bits << 1 | u32::from(code >> 4));
    (high.to_le_bytes(), joined(codes.map(|code| code & 0x0F)))
}
