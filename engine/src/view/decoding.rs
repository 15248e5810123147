//! Decoding of stored elements to `f64`, one loop per type.

use multiversion::multiversion;
use multiversion::target::match_target;

use crate::lazy_bytes::LazyBytes;
use crate::view::float8;
use crate::weight::DType;

/// Returns true if every element of a type has an exact `f64`.
pub(super) fn is_exact(dtype: DType, bytes: &LazyBytes) -> bool {
    use DType::*;
    const LARGEST: u64 = 1 << f64::MANTISSA_DIGITS;
    match dtype {
        F64 | F32 | F16 | BF16 | F8_E4M3 | F8_E5M2 | I8 | I16 | I32 | U8 | U16 | U32 | BOOL => true,
        I64 => bytes.as_chunks().0.iter().all(|&bits| i64::from_le_bytes(bits).unsigned_abs() <= LARGEST),
        U64 => bytes.as_chunks().0.iter().all(|&bits| u64::from_le_bytes(bits) <= LARGEST),
        _ => false,
    }
}

/// Widens elements of a type that [`View::stored`] accepts.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
pub(super) fn decode(dtype: DType, bytes: &[u8], out: &mut [f64]) {
    match dtype {
        DType::F64 => widen(bytes, out, f64::from_le_bytes),
        DType::F32 => widen(bytes, out, |bits| f32::from_le_bytes(bits).into()),
        DType::F16 => widen(bytes, out, |bits| half(bits).into()),
        DType::BF16 => widen(bytes, out, |bits| brain(bits).into()),
        DType::F8_E4M3 => widen(bytes, out, |[bits]| float8::E4M3[usize::from(bits)]),
        DType::F8_E5M2 => widen(bytes, out, |[bits]| float8::E5M2[usize::from(bits)]),
        DType::I8 => widen(bytes, out, |bits| i8::from_le_bytes(bits).into()),
        DType::I16 => widen(bytes, out, |bits| i16::from_le_bytes(bits).into()),
        DType::I32 => widen(bytes, out, |bits| i32::from_le_bytes(bits).into()),
        DType::U8 | DType::BOOL => widen(bytes, out, |bits| u8::from_le_bytes(bits).into()),
        DType::U16 => widen(bytes, out, |bits| u16::from_le_bytes(bits).into()),
        DType::U32 => widen(bytes, out, |bits| u32::from_le_bytes(bits).into()),
        DType::I64 => widen(bytes, out, |bits| i64::from_le_bytes(bits) as f64),
        DType::U64 => widen(bytes, out, |bits| u64::from_le_bytes(bits) as f64),
        _ => unreachable!("a view contains plain numbers, no quantised blocks"),
    }
}

#[inline(always)]
fn widen<const N: usize, T>(bytes: &[u8], out: &mut [T], element: impl Fn([u8; N]) -> T) {
    out.iter_mut().zip(bytes.as_chunks::<N>().0).for_each(|(out, &bits)| *out = element(bits));
}

/// Returns true if every element of a type is an `f32`, and [`decode_short`] supports the type.
pub(super) fn is_short(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Widens elements of a type for which [`is_short`] is true.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw+f16c", "x86_64+avx2+fma+f16c"))]
pub(super) fn decode_short(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => widen(bytes, out, f32::from_le_bytes),
        DType::BF16 => widen(bytes, out, brain),
        DType::F16 => match_target! {
            "x86_64+f16c" => {
                let (eights, rest) = bytes.as_chunks::<16>();
                let (whole, after) = out.split_at_mut(8 * eights.len());
                let room = whole.as_chunks_mut::<8>().0.iter_mut();
                room.zip(eights).for_each(|(out, &eight)| *out = halves(zerocopy::transmute!(eight)));
                widen(rest, after, half);
            },
            _ => widen(bytes, out, half),
        },
        _ => unreachable!("only types up to the length of f32 get here"),
    }
}

#[inline(always)]
pub(crate) fn brain(bits: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16)
}

/// Converts an `f16`, with operations that can be vectorised.
#[inline(always)]
pub(crate) fn half(bits: [u8; 2]) -> f32 {
    const EXPONENT: u32 = 0x7c00;
    let bits = u32::from(u16::from_le_bytes(bits));
    // The exponent bias of f16 is 15, and that of f32 is 127.
    let size = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 127 - 15) << 23);
    let finite = size.to_bits();
    let size = if bits & EXPONENT == EXPONENT { finite | 0xff << 23 } else { finite };
    f32::from_bits(size | (bits & 0x8000) << 16)
}

/// Converts eight `f16` at once, with the same results as [`half`].
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "f16c")]
pub(crate) fn halves(eight: [[u8; 2]; 8]) -> [f32; 8] {
    use std::arch::x86_64::{__m128i, _mm256_cvtph_ps};
    let eight: __m128i = zerocopy::transmute!(eight);
    zerocopy::transmute!(_mm256_cvtph_ps(eight))
}
