//! Register operations that several kernels share.

use std::arch::aarch64::*;
use std::arch::asm;

use zerocopy::transmute;

/// Two registers with 32 bytes.
pub(super) type Bytes = [int8x16_t; 2];

/// Eight integer lanes.
pub(super) type Int32Lanes = [int32x4_t; 2];

/// Eight `f32` lanes; NEON version of [`crate::quant::lanes::LaneSums`].
#[derive(Clone, Copy)]
pub(super) struct NeonLanes(pub(super) [float32x4_t; 2]);

impl NeonLanes {
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn zeros() -> Self {
        Self([vdupq_n_f32(0.0); 2])
    }

    /// Returns `lanes + scale · sums`, with one rounding per lane.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn plus_scaled(self, scale: f32, sums: Int32Lanes) -> Self {
        let [low, high] = sums.map(|sums| vcvtq_f32_s32(sums));
        Self([vfmaq_n_f32(self.0[0], low, scale), vfmaq_n_f32(self.0[1], high, scale)])
    }

    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn add_scaled(&mut self, scale: f32, sums: Int32Lanes) {
        *self = self.plus_scaled(scale, sums);
    }

    /// Adds products lane by lane, with one rounding per lane.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn add_products(&mut self, a: [float32x4_t; 2], b: [float32x4_t; 2]) {
        *self = Self([vfmaq_f32(self.0[0], a[0], b[0]), vfmaq_f32(self.0[1], a[1], b[1])]);
    }

    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn plus(self, other: Self) -> Self {
        Self([vaddq_f32(self.0[0], other.0[0]), vaddq_f32(self.0[1], other.0[1])])
    }

    /// Adds all lanes: the upper half to the lower half, twice, then the last two lanes.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn sum(self) -> f32 {
        sum4(self.halves_added())
    }

    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn halves_added(self) -> float32x4_t {
        vaddq_f32(self.0[0], self.0[1])
    }
}

/// Adds the last four lanes, as [`NeonLanes::sum`] does.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn sum4(lanes: float32x4_t) -> f32 {
    vpadds_f32(vadd_f32(vget_low_f32(lanes), vget_high_f32(lanes)))
}

/// Multiplies bytes and adds four products per lane, with the same bits as [`crate::quant::lanes::dot4`] if no
/// activation is −128.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn dot4([w0, w1]: Bytes, [a0, a1]: Bytes) -> Int32Lanes {
    [products(w0, a0), products(w1, a1)]
}

/// Computes `vdotq_s32`, whose Rust function is stable only from 1.98 on.
#[inline]
#[target_feature(enable = "neon,dotprod")]
#[expect(unsafe_code)]
pub(super) fn products(a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sums = vdupq_n_s32(0);
    // SAFETY: the instruction is one of this function's features, and accesses only these registers.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inlateout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Loads a register of 16 bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load(bytes: &[u8; 16]) -> uint8x16_t {
    transmute!(*bytes)
}

/// Loads two registers of 32 codes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn registers(codes: [i8; 32]) -> Bytes {
    transmute!(codes)
}

/// Looks up the values of 32 indices of 4 bits.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn look_up(table: &[i8; 16], indices: &[u8; 16]) -> Bytes {
    nibbles(indices).map(|indices| vqtbl1q_s8(transmute!(*table), vreinterpretq_u8_s8(indices)))
}

/// Returns the lower 4 bits of 16 bytes, then the upper 4 bits.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn nibbles(bytes: &[u8; 16]) -> Bytes {
    below([vdupq_n_u8(0); 2], bytes)
}

/// Unpacks 4-bit codes and inserts their higher bits.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn below(high: [uint8x16_t; 2], bytes: &[u8; 16]) -> Bytes {
    let bytes = load(bytes);
    let (low, upper) = (vandq_u8(bytes, vdupq_n_u8(0x0F)), vshrq_n_u8::<4>(bytes));
    [vreinterpretq_s8_u8(vorrq_u8(low, high[0])), vreinterpretq_s8_u8(vorrq_u8(upper, high[1]))]
}

/// Expands 32 bits to bytes: `value` for a set bit, else 0.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn spread_bits(bits: [u8; 4], value: u8) -> [uint8x16_t; 2] {
    const BIT: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    let [a, b, c, d] = bits;
    let spread = |low: u8, high: u8| {
        let bytes = vcombine_u8(vdup_n_u8(low), vdup_n_u8(high));
        vandq_u8(vtstq_u8(bytes, load(&BIT)), vdupq_n_u8(value))
    };
    [spread(a, b), spread(c, d)]
}

/// Adds all lanes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn sum_integers([low, high]: Int32Lanes) -> i32 {
    vaddvq_s32(vaddq_s32(low, high))
}
