//! Q8_0: blocks of 32 values, an `f16` scale and 32 `int8` codes; value = scale · code.

use half::f16;

const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 2 + BLOCK;

/// One block as it is stored.
struct Stored<'b> {
    scale: f32,
    codes: &'b [u8],
}

fn blocks(bytes: &[u8]) -> impl Iterator<Item = Stored<'_>> {
    let (blocks, _) = bytes.as_chunks::<BLOCK_BYTES>();
    blocks
        .iter()
        .map(|[low, high, codes @ ..]| Stored { scale: f16::from_le_bytes([*low, *high]).to_f32(), codes })
}

/// Decodes whole blocks into `out`.
pub fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in blocks(bytes).zip(out.chunks_mut(BLOCK)) {
        for (&code, out) in block.codes.iter().zip(out) {
            *out = f32::from(code.cast_signed()) * block.scale;
        }
    }
}

/// One block of quantised activations.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The scale, rounded to `f16` as it would be stored.
    pub scale: f32,
    /// The codes, −127 to 127.
    pub codes: [i8; BLOCK],
}

/// Quantises a row of activations as ggml's x86 kernels do.
///
/// The codes come from the unrounded maximum, `round_half_even(x · (127 / max))`, while the scale is
/// `max / 127` rounded to `f16`. (ggml's portable code divides and rounds differently; files are written by it.)
///
/// # Panics
/// If the row is not whole in blocks of 32: checked when a model is loaded.
pub fn quantise(row: &[f32]) -> Vec<Block> {
    let (blocks, rest) = row.as_chunks::<BLOCK>();
    assert!(rest.is_empty(), "a row of Q8_0 activations is whole in blocks");
    blocks.iter().map(quantise_block).collect()
}

fn quantise_block(values: &[f32; BLOCK]) -> Block {
    let max = values.iter().fold(0.0f32, |max, value| max.max(value.abs()));
    let scale = f16::from_f32(max / 127.0).to_f32();
    let inverse = if max == 0.0 { 0.0 } else { 127.0 / max };
    Block { scale, codes: values.map(|value| (value * inverse).round_ties_even() as i8) }
}

/// Dot product of a stored row with quantised activations: integers within a block, `f32` between blocks.
pub fn dot(stored: &[u8], activations: &[Block]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for (weights, activations) in blocks(stored).zip(activations) {
        let scale = weights.scale * activations.scale;
        let (weights, _) = weights.codes.as_chunks::<4>();
        let (activations, _) = activations.codes.as_chunks::<4>();
        for (lane, (weights, activations)) in lanes.iter_mut().zip(weights.iter().zip(activations)) {
            *lane += scale * dot4(weights, activations) as f32;
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

fn dot4(weights: &[u8; 4], activations: &[i8; 4]) -> i32 {
    let products = weights.iter().zip(activations);
    products.map(|(&weight, &activation)| i32::from(weight.cast_signed()) * i32::from(activation)).sum()
}
