//! Rounding of weights to values that a quantised file can represent.

use half::{bf16, f16};

use super::nearest_whole;
use super::{decode_row, k_quant_search, quantise_row, round_to_small_float};
use crate::weight::DType;

/// A way to round weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightRounding {
    /// Rounds each weight separately to a float type.
    Float(DType),
    /// Divides each weight by a scale of the matrix, so that the largest weight of the matrix becomes the largest code,
    /// and rounds.
    Tensor(CodeType),
    /// Divides each weight by a scale of its row, so that the largest weight of the row becomes the largest code, and
    /// rounds.
    Row(CodeType),
    /// Rounds blocks of weights to a ggml type.
    Blocks(DType),
}

/// Numbers to which weights are rounded after they are divided by a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CodeType {
    /// Codes from −127 to 127.
    Int8,
    /// 8-bit floats with 3 bits of mantissa.
    E4m3,
}

impl CodeType {
    fn largest(self) -> f32 {
        match self {
            CodeType::Int8 => 127.0,
            CodeType::E4m3 => 448.0,
        }
    }

    fn round(self, x: f32) -> f32 {
        match self {
            CodeType::Int8 => nearest_whole(x.into()) as f32,
            CodeType::E4m3 => round_float(DType::F8_E4M3, x),
        }
    }
}

impl WeightRounding {
    /// Rounds a row. `largest` is the largest absolute value of the matrix.
    pub fn round(self, row: &mut [f32], largest: f32) {
        let by_scale = |row: &mut [f32], codes: CodeType, largest: f32| {
            let scale = largest / codes.largest();
            if scale > 0.0 {
                row.iter_mut().for_each(|x| *x = codes.round(*x / scale) * scale);
            }
        };
        match self {
            WeightRounding::Float(float) => {
                row.iter_mut().for_each(|x| *x = round_float(float, *x));
            }
            WeightRounding::Tensor(codes) => by_scale(row, codes, largest),
            WeightRounding::Row(codes) => {
                let largest = largest_of(row);
                by_scale(row, codes, largest);
            }
            WeightRounding::Blocks(dtype) if row.len().is_multiple_of(dtype.block_len()) => {
                round_to_blocks(dtype, row);
            }
            WeightRounding::Blocks(_) => {}
        }
    }
}

/// Rounds to a float type of at most 16 bits; other types leave the value as it is.
pub(crate) fn round_float(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::BF16 => bf16::from_f32(value).to_f32(),
        DType::F8_E4M3 => round_to_small_float(value, 3, -6, 448.0),
        DType::F8_E5M2 => round_to_small_float(value, 2, -14, 57_344.0),
        _ => value,
    }
}

/// Returns the largest absolute value.
pub(crate) fn largest_of(row: &[f32]) -> f32 {
    row.iter().fold(0.0f32, |most, x| most.max(x.abs()))
}

/// Rounds a row to the values of a ggml file of this type, as `llama-quantize` does without an importance matrix.
fn round_to_blocks(dtype: DType, row: &mut [f32]) {
    match dtype {
        DType::Q8_0 => row.as_chunks_mut::<32>().0.iter_mut().for_each(round_to_q8_0),
        DType::Q4_K => row.as_chunks_mut::<256>().0.iter_mut().for_each(k_quant_search::round_to_q4_k),
        DType::Q6_K => row.as_chunks_mut::<256>().0.iter_mut().for_each(k_quant_search::round_to_q6_k),
        _ => {
            if let Some(size) = dtype.bytes_for(row.len()) {
                let mut bytes = vec![0; size];
                quantise_row(dtype, row, &mut bytes);
                decode_row(dtype, &bytes, row);
            }
        }
    }
}

/// Rounds as ggml's portable code does: multiplies by the inverse of the unrounded scale, and rounds halves away
/// from zero.
fn round_to_q8_0(values: &mut [f32; 32]) {
    let scale = largest_of(values) / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let stored = f16::from_f32(scale).to_f32();
    values.iter_mut().for_each(|value| *value = (*value * inverse).round() * stored);
}
