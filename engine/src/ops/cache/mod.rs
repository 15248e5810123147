//! KV cache: new key or value rows, rounded or quantised to the cache's type, after the rows of earlier tokens:
//! `[T, Hkv, D]` to `[S, Hkv, D]`.
//!
//! The type is a property of the numerics ([`Numerics::to_cache`](crate::numerics::Numerics::to_cache)), so this folder
//! defines only the arithmetic with stored scales. The rows are kept by the model ([`KvLayer`](crate::model::KvLayer)).

pub(crate) mod exact;
pub(crate) mod faults;

use crate::quant::{ActivationCodeType, ActivationCodes, CodeGroup, ScaleType};
use crate::tensor::Tensor;
use crate::weight::{InputCodes, InputScale};

/// Quantises rows, `[T, Hkv, D]`, to 8-bit floats by stored scales, and decodes them. There is one scale, or one for each
/// head. Quotients and results have the type `short`.
pub(crate) fn scaled(x: Tensor, scales: &[f32], short: ScaleType) -> Tensor {
    let width = x.shape().last().copied().unwrap_or(1).max(1);
    let (codes, mut data) = (scaled_codes(short, short), x.data().to_vec());
    for (row, values) in data.chunks_mut(width).enumerate() {
        codes.round_stored(values, &cache_input(scales, row));
    }
    Tensor::new(x.shape(), data)
}

/// Returns the codes of an FP8 cache for these types of quotients and decoded values.
fn scaled_codes(quotients: ScaleType, values: ScaleType) -> ActivationCodes {
    let (group, codes) = (CodeGroup::Matrix, ActivationCodeType::F8E4m3);
    ActivationCodes { group, codes, quotients, values: Some(values), ..ActivationCodes::default() }
}

/// Returns the scale of a row of `[T·Hkv, D]`.
fn cache_input(scales: &[f32], row: usize) -> InputScale {
    InputScale { codes: InputCodes::Float8, number: scales[row % scales.len()], zero: 0.0 }
}
