//! Selects the fast functions for this machine's architecture. To support another instruction set, add a folder
//! like `avx2`, and a line in each of these functions.

use super::block::QuantBlock;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::{Dot, DotTile, RowDecoder, RowQuantiser};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::weight::DType;

/// Returns the decoder of rows that is compiled for more instructions than the baseline, if there is one. On
/// aarch64, the baseline has the vector instructions.
pub(super) fn decoder<B: QuantBlock>() -> Option<RowDecoder> {
    #[cfg(target_arch = "x86_64")]
    return avx2::decoder::<B>();
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

/// Returns the kernel for one token.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(unused_variables))]
pub(super) fn dot(dtype: DType) -> Option<Dot> {
    #[cfg(target_arch = "x86_64")]
    return avx2::dot(dtype);
    #[cfg(target_arch = "aarch64")]
    return neon::dot(dtype);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return None;
}

/// Returns the kernel for several tokens, if ggml uses another summation order for several tokens.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(unused_variables))]
pub(super) fn batch_dot(dtype: DType) -> Option<Dot> {
    #[cfg(target_arch = "x86_64")]
    return avx2::batch_dot(dtype);
    #[cfg(target_arch = "aarch64")]
    return neon::batch_dot(dtype);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return None;
}

/// Returns the kernel for F16 weights with F32 activations.
pub(super) fn mixed_dot() -> Option<Dot> {
    #[cfg(target_arch = "x86_64")]
    return avx2::mixed_dot();
    #[cfg(target_arch = "aarch64")]
    return neon::mixed_dot();
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return None;
}

/// Returns the tiles for several tokens, the fastest first.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(unused_variables))]
pub(super) fn tiles(dtype: DType) -> impl Iterator<Item = DotTile> {
    #[cfg(target_arch = "x86_64")]
    return [avx512::tile(dtype), avx2::tile(dtype)].into_iter().flatten();
    #[cfg(target_arch = "aarch64")]
    return neon::tile(dtype).into_iter();
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return std::iter::empty();
}

/// Returns the kernel for rows of activations.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub(super) fn quantise(dtype: DType) -> Option<RowQuantiser> {
    #[cfg(target_arch = "x86_64")]
    return avx2::quantise(dtype);
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}
