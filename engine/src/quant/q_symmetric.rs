//! Blocks of 32 signed codes with one scale: value = scale · code.

use super::block::QuantBlock;

/// Block with a scale and signed codes.
pub(super) trait SymmetricBlock: QuantBlock {
    /// Returns the factor of each code.
    fn scale(&self) -> f32;

    /// Returns the codes, in the order of the values.
    fn codes(&self) -> [i8; 32];
}

/// Decodes a block; implements [`QuantBlock::decode`].
pub(super) fn decode(block: &impl SymmetricBlock, out: &mut [f32]) {
    let scale = block.scale();
    for (out, code) in out.iter_mut().zip(block.codes()) {
        *out = f32::from(code) * scale;
    }
}
