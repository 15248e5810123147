//! Blocks of 32 unsigned codes with a scale and a minimum: value = scale · code + min. Activations are Q8_1.

use super::block::{QuantBlock, StoredF16, blocks};
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
#[inline(always)]
pub(super) fn decode(block: &impl AsymmetricBlock, out: &mut [f32]) {
    let (scale, min) = (block.scale(), block.min());
    for (out, code) in out.iter_mut().zip(block.codes()) {
        *out = f32::from(code) * scale + min;
    }
}

/// Quantises values as ggml's portable code does: the smallest value gets code 0, and the largest gets code
/// `levels`. Returns the scale, the minimum and the codes.
pub(super) fn quantised(values: &[f32; 32], levels: u8) -> (StoredF16, StoredF16, [u8; 32]) {
    let bounds = values.iter().fold((f32::MAX, -f32::MAX), |(min, max), &value| {
        (if value < min { value } else { min }, if value > max { value } else { max })
    });
    let (min, step) = (bounds.0, (bounds.1 - bounds.0) / f32::from(levels));
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    let code = |value: f32| (((value - min) * inverse + 0.5) as u8).min(levels);
    (StoredF16::new(step), StoredF16::new(min), values.map(code))
}

/// Computes the dot product. The minima are multiplied by the sum of the activations, which Q8_1 stores, and added
/// in a separate sum.
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
