//! Blocks of 32 signed codes with one scale: value = scale · code.

use super::block::{QuantBlock, StoredF16};

/// Block with a scale and signed codes.
pub(super) trait SymmetricBlock: QuantBlock {
    /// Returns the factor of each code.
    fn scale(&self) -> f32;

    /// Returns the codes, in the order of the values.
    fn codes(&self) -> [i8; 32];
}

/// Decodes a block; implements [`QuantBlock::decode`].
#[inline(always)]
pub(super) fn decode(block: &impl SymmetricBlock, out: &mut [f32]) {
    let scale = block.scale();
    for (out, code) in out.iter_mut().zip(block.codes()) {
        *out = f32::from(code) * scale;
    }
}

/// Quantises values as ggml's portable code does: the first value with the largest absolute value gets code
/// −`levels`. Returns the scale, and the codes plus `levels`.
pub(super) fn quantised(values: &[f32; 32], levels: u8) -> (StoredF16, [u8; 32]) {
    let most = values.iter().fold((0.0f32, 0.0f32), |(size, most), &value| match size < value.abs() {
        true => (value.abs(), value),
        false => (size, most),
    });
    let step = most.1 / -f32::from(levels);
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    let code =
        |value: f32| ((value * inverse + (f32::from(levels) + 0.5)) as i8).min((2 * levels - 1) as i8) as u8;
    (StoredF16::new(step), values.map(code))
}
