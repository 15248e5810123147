//! Codes of 256-value blocks, unpacked into registers. Row r contains values 32r to 32r + 31.

use std::arch::aarch64::*;

use super::registers::*;
use crate::quant::block::part;
use crate::quant::{iq4_nl, iq4_xs, q3_k, q5_k, q6_k};

/// Computes [`crate::quant::q2_k::two_bits`] with the same bits.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn two_bits(bytes: &[u8; 64], row: usize) -> Bytes {
    let shift = vdupq_n_s8(-(2 * (row % 4) as i8));
    halves(part(bytes, row / 4), |half| vandq_u8(vshlq_u8(half, shift), vdupq_n_u8(3)))
}

/// Unpacks the codes of Q3_K, −4 to 3.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q3_k(w: &q3_k::BlockQ3K, row: usize) -> Bytes {
    both(two_bits(&w.codes, row), high_bits(&w.high, row, 4), |low, high| {
        vsubq_s8(vorrq_s8(low, high), vdupq_n_s8(4))
    })
}

/// Computes [`crate::quant::q4_k::nibbles`] with the same bits.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn nibbles(bytes: &[u8; 128], row: usize) -> Bytes {
    nibbles_of(part(bytes, row / 2), row % 2 == 1)
}

/// Unpacks the codes of Q5_K, 0 to 31.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q5_k(w: &q5_k::BlockQ5K, row: usize) -> Bytes {
    both(nibbles(&w.nibbles, row), high_bits(&w.high, row, 16), |low, high| vorrq_s8(low, high))
}

/// Unpacks the codes of Q6_K, 0 to 63.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn q6_k(w: &q6_k::BlockQ6K, row: usize) -> Bytes {
    let low = nibbles_of(part(&w.low, row / 4 * 2 + row % 2), row % 4 >= 2);
    both(low, two_bits(&w.high, row), |low, high| vorrq_s8(low, vshlq_n_s8::<4>(high)))
}

/// Unpacks the codes of IQ4_XS.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn iq4_xs(w: &iq4_xs::BlockIq4Xs, row: usize) -> Bytes {
    look_up(&iq4_nl::VALUES, &w.nibbles[row])
}

/// Returns `value` where bit `row` of a byte is set.
#[inline]
#[target_feature(enable = "neon")]
fn high_bits(bits: &[u8; 32], row: usize, value: u8) -> Bytes {
    let bit = vdupq_n_u8(1 << row);
    halves(bits, |half| vandq_u8(vtstq_u8(half, bit), vdupq_n_u8(value)))
}

#[inline]
#[target_feature(enable = "neon")]
fn nibbles_of(bytes: &[u8; 32], upper: bool) -> Bytes {
    halves(bytes, |half| if upper { vshrq_n_u8::<4>(half) } else { vandq_u8(half, vdupq_n_u8(0x0F)) })
}

#[inline]
#[target_feature(enable = "neon")]
fn halves(bytes: &[u8; 32], f: impl Fn(uint8x16_t) -> uint8x16_t) -> Bytes {
    [0, 1].map(|half| vreinterpretq_s8_u8(f(load(part(bytes, half)))))
}

#[inline]
#[target_feature(enable = "neon")]
fn both([a, b]: Bytes, [c, d]: Bytes, f: impl Fn(int8x16_t, int8x16_t) -> int8x16_t) -> Bytes {
    [f(a, c), f(b, d)]
}
