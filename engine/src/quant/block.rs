//! Blocks of all formats as typed records that view the bytes without copying them.

use half::f16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// A stored block. Every field consists of bytes, so a block needs no alignment.
pub(super) trait QuantBlock: FromBytes + Immutable + KnownLayout + Unaligned {
    /// Number of values in a block.
    const LEN: usize;

    /// Returns true if all scales are finite.
    fn is_finite(&self) -> bool;

    /// Decodes the block's [`QuantBlock::LEN`] values.
    fn decode(&self, out: &mut [f32]);
}

/// Returns the blocks of a row.
///
/// # Panics
/// If the last block is incomplete; this is checked when a model is loaded.
pub(super) fn blocks<B: FromBytes + Immutable + KnownLayout + Unaligned>(row: &[u8]) -> &[B] {
    <[B]>::ref_from_bytes(row).expect("the row is a whole number of blocks")
}

/// Returns the blocks of a row for writing.
pub(super) fn blocks_mut<B: FromBytes + IntoBytes + KnownLayout + Unaligned>(row: &mut [u8]) -> &mut [B] {
    <[B]>::mut_from_bytes(row).expect("the row is a whole number of blocks")
}

/// Decodes a row block by block.
#[inline(always)]
pub(super) fn decode_row<B: QuantBlock>(row: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<B>(row).iter().zip(out.chunks_exact_mut(B::LEN)) {
        block.decode(out);
    }
}

/// Returns the index of the first block with an infinite or NaN scale.
pub(super) fn first_unsound<B: QuantBlock>(row: &[u8]) -> Option<usize> {
    blocks::<B>(row).iter().position(|block| !block.is_finite())
}

/// A stored `f16`: two bytes, little-endian.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub(super) struct StoredF16([u8; 2]);

impl StoredF16 {
    /// Rounds to the nearest `f16`, ties to even.
    pub(super) fn new(value: f32) -> Self {
        Self(f16::from_f32(value).to_le_bytes())
    }

    #[cfg(not(target_arch = "aarch64"))]
    pub(super) fn to_f32(self) -> f32 {
        f16::from_le_bytes(self.0).to_f32()
    }

    /// Converts to `f32` with one instruction, where the `half` crate would call a function.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn to_f32(self) -> f32 {
        super::neon::half::widen(self.bits())
    }

    pub(super) fn from_bytes(bytes: [u8; 2]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_finite(self) -> bool {
        f16::from_le_bytes(self.0).is_finite()
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn from_bits(bits: u16) -> Self {
        Self(bits.to_le_bytes())
    }

    /// Returns the bit pattern of the number.
    pub(super) fn bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }
}

#[inline]
pub(super) fn part<const N: usize, T>(elements: &[T], index: usize) -> &[T; N] {
    &elements.as_chunks::<N>().0[index]
}

/// Packs 32 codes of 4 bits; the inverse of [`nibbles`].
pub(super) fn joined(codes: [u8; 32]) -> [u8; 16] {
    std::array::from_fn(|at| codes[at] | codes[16 + at] << 4)
}

/// Returns the low 4 bits of 16 bytes, then the high 4 bits: the layout of most 4-bit types.
pub(super) fn nibbles(bytes: &[u8; 16]) -> [u8; 32] {
    transmute!([bytes.map(|byte| byte & 0x0F), bytes.map(|byte| byte >> 4)])
}
