//! IQ4_NL: an `f16` scale and 32 indices of 4 bits into a table of values that are closer together near zero.

use half::f16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{QuantBlock, StoredF16, blocks_mut, joined, nibbles};
use super::q_symmetric::{self, SymmetricBlock};

/// Values of the 16 indices (ggml's `kvalues_iq4nl`).
pub(super) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A stored block: 32 values in 18 bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockIq4Nl {
    pub(super) scale: StoredF16,
    pub(super) nibbles: [u8; 16],
}

impl QuantBlock for BlockIq4Nl {
    const LEN: usize = 32;

    fn is_finite(&self) -> bool {
        self.scale.is_finite()
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        q_symmetric::decode(self, out);
    }
}

impl SymmetricBlock for BlockIq4Nl {
    fn scale(&self) -> f32 {
        self.scale.to_f32()
    }

    fn codes(&self) -> [i8; 32] {
        nibbles(&self.nibbles).map(|index| VALUES[usize::from(index)])
    }
}

/// Quantises rows of a KV cache. Values that were decoded from a block get exactly that block's scale and codes
/// again.
pub(super) fn quantise(row: &[f32], out: &mut [u8]) {
    for (block, values) in blocks_mut::<BlockIq4Nl>(out).iter_mut().zip(row.as_chunks::<32>().0) {
        *block = decoded_block(values).unwrap_or_else(|| quantised(values));
    }
}

/// Smallest largest value of a block; a block below it becomes zeros (ggml's `GROUP_MAX_EPS`).
const LEAST: f32 = 1e-15;

/// Quantises as ggml's portable code does. The first value with the largest absolute value gets the first code. The
/// scale is then refined by weighted least squares, while the codes stay the same.
fn quantised(values: &[f32; 32]) -> BlockIq4Nl {
    let most = largest(values);
    if !(most.abs() >= LEAST) {
        return BlockIq4Nl { scale: StoredF16::new(0.0), nibbles: [0; 16] };
    }
    let inverse = 1.0 / (most / f32::from(VALUES[0]));
    let codes = values.map(|value| nearest(inverse * value));
    let (mut products, mut squares) = (0.0f32, 0.0f32);
    for (&value, &code) in values.iter().zip(&codes) {
        let (weight, code) = (value * value, f32::from(VALUES[usize::from(code)]));
        products += weight * code * value;
        squares += weight * code * code;
    }
    let scale = if squares > 0.0 { products / squares } else { 0.0 };
    BlockIq4Nl { scale: StoredF16::new(scale), nibbles: joined(codes) }
}

/// Returns the first value with the largest absolute value.
fn largest(values: &[f32; 32]) -> f32 {
    values.iter().fold(0.0f32, |most, &value| if value.abs() > most.abs() { value } else { most })
}

/// Returns the index of the nearest value in the table. If two are equally near, returns the index of the larger
/// one.
fn nearest(x: f32) -> u8 {
    let above = VALUES.iter().position(|&value| x < f32::from(value)).unwrap_or(VALUES.len());
    match above {
        0 => 0,
        16 => 15,
        above => {
            let (low, high) = (f32::from(VALUES[above - 1]), f32::from(VALUES[above]));
            (if x - low < high - x { above - 1 } else { above }) as u8
        }
    }
}

/// Returns a block that decodes to exactly these values, if there is one.
fn decoded_block(values: &[f32; 32]) -> Option<BlockIq4Nl> {
    let most = largest(values);
    let block = |&divisor: &i8| {
        let scale = f16::from_f32(most / f32::from(divisor));
        let code = |value: f32| {
            let index = VALUES.iter().position(|&code| f32::from(code) * scale.to_f32() == value)?;
            Some(index as u8)
        };
        let mut codes = [0; 32];
        for (out, &value) in codes.iter_mut().zip(values) {
            *out = code(value)?;
        }
        Some(BlockIq4Nl { scale: StoredF16::new(scale.to_f32()), nibbles: joined(codes) })
    };
    VALUES.iter().filter(|_| most != 0.0).find_map(block)
}
