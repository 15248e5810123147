//! Q8_0: an `f16` scale and 32 codes of 8 bits. Used for weights, and for the activations of all types with signed
//! codes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, blocks_mut};
use super::q_symmetric::{self, SymmetricBlock};
use super::rounding::{largest, to_int8, to_int32};

/// A stored block: 32 values in 34 bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ8_0 {
    pub(super) scale: StoredF16,
    pub(super) codes: [i8; 32],
}

impl QuantBlock for BlockQ8_0 {
    const LEN: usize = 32;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        q_symmetric::decode(self, out);
    }
}

impl SymmetricBlock for BlockQ8_0 {
    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn codes(&self) -> [i8; 32] {
        self.codes
    }
}

/// Quantises a row of activations as ggml's x86 kernels do.
///
/// The codes are computed from the unrounded maximum, `round_half_even(x · (127 / max))`, while the scale is
/// `max / 127` rounded to `f16`. (ggml's portable code, which writes files, divides and rounds differently.)
pub(super) fn quantise(row: &[f32], out: &mut [u8]) {
    let (values, _) = row.as_chunks::<32>();
    for (block, values) in blocks_mut::<BlockQ8_0>(out).iter_mut().zip(values) {
        let max = largest(values);
        *block = BlockQ8_0 { scale: StoredF16::new(max / 127.0), codes: integers(values, max).map(to_int8) };
    }
}

/// Returns the codes of 32 values, given their largest absolute value, before clamping to 8 bits.
pub(super) fn integers(values: &[f32; 32], max: f32) -> [i32; 32] {
    let inverse = if max == 0.0 { 0.0 } else { 127.0 / max };
    values.map(|value| to_int32(value * inverse))
}
