//! Q8_1: Q8_0 plus the sum of the values, for the activations of types with a minimum. Never used for weights.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{StoredF16, blocks_mut};
use super::q8_0;
use super::rounding::{largest, to_int8};

/// A stored block: 32 values in 36 bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ8_1 {
    pub(super) scale: StoredF16,
    pub(super) sum: StoredF16,
    pub(super) codes: [i8; 32],
}

impl BlockQ8_1 {
    pub(super) fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    /// Returns the stored sum of the values.
    pub(super) fn sum(&self) -> f32 {
        self.sum.to_f32()
    }
}

/// Quantises a row of activations as ggml's x86 kernels do. Codes and scale are those of Q8_0. The sum is the
/// unrounded scale times the sum of the codes.
pub(super) fn quantise(row: &[f32], out: &mut [u8]) {
    let (values, _) = row.as_chunks::<32>();
    for (block, values) in blocks_mut::<BlockQ8_1>(out).iter_mut().zip(values) {
        let max = largest(values);
        let (scale, codes) = (max / 127.0, q8_0::integers(values, max));
        let sum = codes.iter().fold(0i32, |sum, &code| sum.wrapping_add(code));
        let (sum, codes) = (StoredF16::new(scale * sum as f32), codes.map(to_int8));
        *block = BlockQ8_1 { scale: StoredF16::new(scale), sum, codes };
    }
}
