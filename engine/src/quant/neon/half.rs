//! Conversion of `f16` by instructions that every aarch64 machine has, but for which Rust has no stable function.

use std::arch::aarch64::{float32x4_t, uint8x16_t};
use std::arch::asm;

/// Widens an `f16`, given by its bits.
#[inline]
#[expect(unsafe_code)]
pub(in crate::quant) fn widen(bits: u16) -> f32 {
    let widened: f32;
    // SAFETY: the instruction accesses only these registers.
    unsafe {
        asm!(
            "fcvt {widened:s}, {bits:h}",
            widened = lateout(vreg) widened,
            bits = in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    widened
}

/// Widens eight `f16`.
#[inline]
#[expect(unsafe_code)]
pub(super) fn widen_eight(halves: uint8x16_t) -> [float32x4_t; 2] {
    let (low, high): (float32x4_t, float32x4_t);
    // SAFETY: as above.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {halves:v}.4h",
            "fcvtl2 {high:v}.4s, {halves:v}.8h",
            low = out(vreg) low,
            high = lateout(vreg) high,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    [low, high]
}
