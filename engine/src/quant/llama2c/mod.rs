//! Products of llama2.c: sums in column order, with a rounding after each product and each sum.
//!
//! `run.c` multiplies `f32`. `runq.c` splits rows of weights and activations into groups, whose length the file
//! states. It rounds each group of activations to `int8` by its largest value, multiplies groups in integers, and
//! adds their products in `f32`. Compilers may not reorder these sums (gcc without `-ffast-math`), so the portable
//! code defines the bits. The code in `avx2` computes several rows at a time with the same bits.

#[cfg(target_arch = "x86_64")]
use super::avx2::llama2c as fast;

pub(super) mod portable;

pub(crate) use portable::GroupProducts;
use portable::numbers;
pub use portable::{Groups, Products, QuantisedRow, plain_group_products, plain_products};

/// Decodes a row: each code times its group's scale.
pub fn decode(codes: &[u8], scales: &[u8], group: usize, out: &mut [f32]) {
    for ((out, codes), scale) in out.chunks_mut(group).zip(codes.chunks(group)).zip(numbers(scales)) {
        out.iter_mut().zip(codes).for_each(|(out, &code)| *out = f32::from(code as i8) * scale);
    }
}

/// Returns the index of the first infinite or NaN scale.
pub(crate) fn first_unsound(scales: &[u8]) -> Option<usize> {
    numbers(scales).position(|scale| !scale.is_finite())
}

/// Returns the fastest [`Products`] of this machine.
pub fn products() -> Products {
    fast_products().unwrap_or(plain_products)
}

/// Returns the fastest `GroupProducts` of this machine.
pub fn group_products() -> GroupProducts {
    fast_group_products().unwrap_or(plain_group_products)
}

/// Returns the version with special instructions; `None` if the machine lacks them.
pub fn fast_products() -> Option<Products> {
    #[cfg(target_arch = "x86_64")]
    return fast::products();
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

/// Returns the version of the products of groups with special instructions; `None` if the machine lacks them.
pub fn fast_group_products() -> Option<GroupProducts> {
    #[cfg(target_arch = "x86_64")]
    return fast::group_products();
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}
