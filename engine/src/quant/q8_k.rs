//! Q8_K: an `f32` scale, 256 codes of 8 bits, and the sum of each 16 codes, for the activations of types with blocks of
//! 256. Never used for weights.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::blocks_mut;

/// A stored block: 256 values in 292 bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockQ8K {
    scale: [u8; 4],
    pub(super) codes: [i8; 256],
    /// Sum of each 16 codes, as `i16`.
    pub(super) sums: [[u8; 2]; 16],
}

impl BlockQ8K {
    pub(super) fn scale(&self) -> f32 {
        f32::from_le_bytes(self.scale)
    }

    /// Returns the sum of each 16 codes.
    pub(super) fn sums(&self) -> [i32; 16] {
        self.sums.map(|sum| i16::from_le_bytes(sum).into())
    }

    fn new(scale: f32, codes: [i8; 256]) -> Self {
        let (groups, _) = codes.as_chunks::<16>();
        let sum = |group: usize| groups[group].iter().map(|&code| i16::from(code)).sum::<i16>();
        Self {
            scale: scale.to_le_bytes(),
            codes,
            sums: std::array::from_fn(|group| sum(group).to_le_bytes()),
        }
    }
}

/// Quantises a row of activations as ggml does on every machine. The first value with the largest absolute value
/// becomes −127, so the scale has the opposite sign.
pub(super) fn quantise(row: &[f32], out: &mut [u8]) {
    let (values, _) = row.as_chunks::<256>();
    for (block, values) in blocks_mut::<BlockQ8K>(out).iter_mut().zip(values) {
        *block = quantise_block(values);
    }
}

fn quantise_block(values: &[f32; 256]) -> BlockQ8K {
    let size = largest(values);
    let Some(&max) = values.iter().find(|value| size > 0.0 && value.abs() == size) else {
        return BlockQ8K::new(0.0, [0; 256]);
    };
    let inverse = -127.0 / max;
    BlockQ8K::new(1.0 / inverse, values.map(|value| nearest_int(inverse * value).min(127) as i8))
}

/// Returns the largest absolute value.
fn largest(values: &[f32; 256]) -> f32 {
    let mut lanes = [0.0f32; 16];
    for step in values.as_chunks::<16>().0 {
        for (lane, value) in lanes.iter_mut().zip(step) {
            *lane = if value.abs() > *lane { value.abs() } else { *lane };
        }
    }
    lanes.into_iter().fold(0.0, f32::max)
}

/// Rounds to the nearest integer, ties to even. In this range, adding 1.5 · 2²³ puts the integer into the lowest
/// bits of an `f32`. For infinity and NaN, the lowest eight bits are 0.
fn nearest_int(value: f32) -> i32 {
    let bits = (value + 12_582_912.0).to_bits();
    (bits & 0x007F_FFFF).cast_signed() - 0x0040_0000
}
