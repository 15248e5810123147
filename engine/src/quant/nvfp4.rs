//! NVFP4 as ggml stores it: 64 numbers of 4 bits as in [MXFP4](super::mxfp4). Each 16 numbers have an 8-bit scale:
//! a float with 4 exponent bits and 3 mantissa bits, whose sign is not used. As in ggml, the numbers are doubled to
//! integers, and the scale is halved.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::block::QuantBlock;
use super::lanes::{LaneSums, dot4};
use super::mxfp4::VALUES;
use super::wide_block::pairs;

/// The byte for NaN, without its sign.
const NAN: u8 = 0x7F;

/// A stored block: 64 values in 36 bytes.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BlockNvfp4 {
    scales: [u8; 4],
    /// For each 16 values: the first eight values in the lower bits, the last eight in the upper bits.
    pub(super) nibbles: [[u8; 8]; 4],
}

impl BlockNvfp4 {
    /// Returns the scale of each 16 values.
    pub(super) fn scales(&self) -> [f32; 4] {
        self.scales.map(scale)
    }

    /// Returns the doubled numbers of 32 values.
    pub(super) fn codes(&self, part: usize) -> [i8; 32] {
        std::array::from_fn(|at| {
            let nibbles = self.nibbles[2 * part + at / 16][at % 8] >> (4 * (at / 8 % 2));
            VALUES[usize::from(nibbles & 0x0F)]
        })
    }
}

impl QuantBlock for BlockNvfp4 {
    const LEN: usize = 64;

    /// ggml reads one of the two bytes for NaN as 0.
    fn is_finite(&self) -> bool {
        self.scales.iter().all(|scale| scale & NAN != NAN)
    }

    #[inline(always)]
    fn decode(&self, out: &mut [f32]) {
        let codes = [self.codes(0), self.codes(1)];
        let codes = codes.as_flattened().as_chunks::<16>().0;
        for ((out, codes), scale) in out.as_chunks_mut::<16>().0.iter_mut().zip(codes).zip(self.scales()) {
            *out = codes.map(|code| f32::from(code) * scale);
        }
    }
}

/// Computes the dot product in eight lanes: four for the first 16 of each 32 values, and four for the last 16.
pub(super) fn dot(weights: &[u8], activations: &[u8]) -> f32 {
    let mut lanes = LaneSums::default();
    for (w, a) in pairs::<2, BlockNvfp4>(weights, activations) {
        let scales = w.scales();
        for (part, a) in a.iter().enumerate() {
            let sums = dot4(&w.codes(part), &a.codes);
            for (index, (lane, sum)) in lanes.0.iter_mut().zip(sums).enumerate() {
                let scale = scales[2 * part + index / 4] * a.scale.to_f32();
                *lane = scale.mul_add(sum as f32, *lane);
            }
        }
    }
    lanes.sum()
}

/// Returns half of the number that a byte encodes.
fn scale(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 0x0F, f32::from(byte & 7));
    match exponent {
        _ if byte == NAN => 0.0,
        0 => mantissa / 1024.0,
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(i32::from(exponent) - 8),
    }
}
