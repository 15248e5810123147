//! Block formats: how stored elements decode, how a reference quantises activations, and their dot products.

pub mod q8_0;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::weight::DType;

/// The types that [`decode_row`] reads.
pub const DECODABLE: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::Q8_0];

/// Decodes one row of `out.len()` elements.
///
/// # Panics
/// If `dtype` is not [`DECODABLE`] or `bytes` is not the whole row: both are checked when a model is loaded.
pub fn decode_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.bytes_for(out.len()), "a row of {dtype} is whole");
    match dtype {
        DType::F32 => decode(bytes, out, f32::from_le_bytes),
        DType::F16 => decode(bytes, out, |bits| f16::from_le_bytes(bits).to_f32()),
        DType::BF16 => decode(bytes, out, |bits| bf16::from_le_bytes(bits).to_f32()),
        DType::Q8_0 => q8_0::decode(bytes, out),
        other => panic!("{other} is refused when a model is loaded"),
    }
}

fn decode<const N: usize>(bytes: &[u8], out: &mut [f32], element: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    out.iter_mut().zip(elements).for_each(|(out, &bits)| *out = element(bits));
}

/// Rounds each value to the nearest `f16`, ties to even, and widens it again.
pub fn round_to_f16(values: &[f32]) -> Vec<f32> {
    let mut rounded = vec![f16::ZERO; values.len()];
    rounded.convert_from_f32_slice(values);
    let mut widened = vec![0.0; values.len()];
    rounded.convert_to_f32_slice(&mut widened);
    widened
}
