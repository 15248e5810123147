//! Blocks of 32 unsigned codes with a scale and a minimum: value = scale · code + min. Activations are Q8_1.

use super::block::{QuantBlock, blocks};
use super::lanes::LaneSums;
use super::q8_1;

/// Block with a scale and an offset.
pub(super) trait AsymmetricBlock: QuantBlock {
    /// Returns the factor of each code.
    fn scale(&self) -> f32;

    /// Returns the offset of each value.
    fn min(&self) -> f32;

    /// Returns the codes, in the order of the values.
    fn codes(&self) -> [u8; 32];
}

/// Decodes a block; implements [`QuantBlock::decode`].
pub(super) fn decode(block: &impl AsymmetricBlock, out: &mut [f32]) {
    let (scale, min) = (block.scale(), block.min());
    for (out, code) in out.iter_mut().zip(block.codes()) {
        *out = f32::from(code) * scale + min;
    }
}

/// Computes the dot product. The minima are multiplied with the activations' sum, which Q8_1 stores, in a separate sum.
pub(super) fn dot<B: AsymmetricBlock>(weights: &[u8], activations: &[u8]) -> f32 {
    let (mut lanes, mut mins) = (LaneSums::default(), 0.0f32);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_1::BlockQ8_1>(activations)) {
        mins = w.min().mul_add(a.sum(), mins);
        lanes.add_scaled(w.scale() * a.scale(), dot4(&w.codes(), &a.codes));
    }
    lanes.sum() + mins
}

fn dot4(weights: &[u8; 32], activations: &[i8; 32]) -> [i32; 8] {
    let product = |at: usize| i32::from(weights[at]) * i32::from(activations[at]);
    std::array::from_fn(|lane| (4 * lane..4 * lane + 4).map(product).sum())
}
