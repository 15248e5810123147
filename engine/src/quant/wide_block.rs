//! Blocks of `PARTS` times 32 signed codes. Each 32 codes are multiplied with one block of Q8_0 activations.

use super::block::{QuantBlock, blocks};
use super::lanes::{LaneSums, dot4};
use super::q8_0::BlockQ8_0;

/// Block of 64 or 128 codes with one scale.
pub(super) trait WideBlock<const PARTS: usize>: QuantBlock {
    /// Returns the factor of each code.
    fn scale(&self) -> f32;

    /// Returns the codes of 32 values.
    fn codes(&self, part: usize) -> [i8; 32];
}

/// Decodes a block; implements [`QuantBlock::decode`].
pub(super) fn decode<const PARTS: usize>(block: &impl WideBlock<PARTS>, out: &mut [f32]) {
    let scale = block.scale();
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        *out = block.codes(part).map(|code| f32::from(code) * scale);
    }
}

/// Returns the blocks of a row of weights, each with the blocks of activations it is multiplied with.
pub(super) fn pairs<'a, const PARTS: usize, B: QuantBlock + 'a>(
    weights: &'a [u8],
    activations: &'a [u8],
) -> impl Iterator<Item = (&'a B, &'a [BlockQ8_0; PARTS])> {
    blocks::<B>(weights).iter().zip(blocks::<BlockQ8_0>(activations).as_chunks().0)
}

/// Computes the dot product of Q1_0. Each block is summed in its own lanes, which are added with the block's scale.
pub(super) fn dot_in_lanes<const PARTS: usize, B: WideBlock<PARTS>>(
    weights: &[u8],
    activations: &[u8],
) -> f32 {
    let mut lanes = LaneSums::default();
    for (w, a) in pairs::<PARTS, B>(weights, activations) {
        let mut of_block = LaneSums::default();
        for (part, a) in a.iter().enumerate() {
            of_block.add_scaled(a.scale.to_f32(), dot4(&w.codes(part), &a.codes));
        }
        for (lane, sum) in lanes.0.iter_mut().zip(of_block.0) {
            *lane = w.scale().mul_add(sum, *lane);
        }
    }
    lanes.sum()
}

/// Computes the dot product of Q2_0 like that of Q1_0, but with a single lane.
pub(super) fn dot_in_one<const PARTS: usize, B: WideBlock<PARTS>>(weights: &[u8], activations: &[u8]) -> f32 {
    pairs::<PARTS, B>(weights, activations).fold(0.0, |sum, (w, a)| {
        let of_block = a.iter().enumerate().fold(0.0f32, |sum, (part, a)| {
            a.scale.to_f32().mul_add(integer_sum(w.codes(part), &a.codes) as f32, sum)
        });
        w.scale().mul_add(of_block, sum)
    })
}

fn integer_sum(weights: [i8; 32], activations: &[i8; 32]) -> i32 {
    weights
        .iter()
        .zip(activations)
        .map(|(&weight, &activation)| i32::from(weight) * i32::from(activation))
        .sum()
}
