//! Elements without blocks: little-endian numbers, one after the other, as dumps hold them.

use half::{bf16, f16};

use crate::weight::DType;

/// Every integer up to this one is an `f64` too.
const LARGEST_EXACT: u64 = 1 << f64::MANTISSA_DIGITS;

/// Widens little-endian elements to `f64`, exactly.
///
/// `None` for a block format, for bytes that are not whole elements, and where a 64-bit integer has no
/// exact `f64` (beyond 2⁵³).
pub fn decode(dtype: DType, bytes: &[u8]) -> Option<Vec<f64>> {
    match dtype {
        DType::F64 => widen(bytes, f64::from_le_bytes),
        DType::F32 => widen(bytes, |bits| f32::from_le_bytes(bits).into()),
        DType::F16 => widen(bytes, |bits| f16::from_le_bytes(bits).into()),
        DType::BF16 => widen(bytes, |bits| bf16::from_le_bytes(bits).into()),
        DType::I8 => widen(bytes, |bits| i8::from_le_bytes(bits).into()),
        DType::I16 => widen(bytes, |bits| i16::from_le_bytes(bits).into()),
        DType::I32 => widen(bytes, |bits| i32::from_le_bytes(bits).into()),
        DType::U8 | DType::BOOL => widen(bytes, |bits| u8::from_le_bytes(bits).into()),
        DType::U16 => widen(bytes, |bits| u16::from_le_bytes(bits).into()),
        DType::U32 => widen(bytes, |bits| u32::from_le_bytes(bits).into()),
        DType::I64 => widen_exact(bytes, |bits| {
            let value = i64::from_le_bytes(bits);
            (value.unsigned_abs() <= LARGEST_EXACT).then_some(value as f64)
        }),
        DType::U64 => widen_exact(bytes, |bits| {
            let value = u64::from_le_bytes(bits);
            (value <= LARGEST_EXACT).then_some(value as f64)
        }),
        _ => None,
    }
}

fn widen<const N: usize>(bytes: &[u8], element: impl Fn([u8; N]) -> f64) -> Option<Vec<f64>> {
    let (elements, rest) = bytes.as_chunks::<N>();
    rest.is_empty().then(|| elements.iter().map(|&bits| element(bits)).collect())
}

fn widen_exact<const N: usize>(bytes: &[u8], element: impl Fn([u8; N]) -> Option<f64>) -> Option<Vec<f64>> {
    let (elements, rest) = bytes.as_chunks::<N>();
    elements.iter().map(|&bits| element(bits)).collect::<Option<_>>().filter(|_| rest.is_empty())
}
