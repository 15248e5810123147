//! Dot products with NEON, which every machine of this architecture has, with the same bits as [`super::portable`].
//!
//! The dot product of one row is portable code, since its lanes fill only four registers. Tiles keep the sums of
//! all pairs in registers, a quarter of the lanes at a time, so that each loaded value is multiplied four times.

use std::arch::aarch64::*;
use std::array::from_fn;

use zerocopy::transmute;

use super::{Kernel, LANES, LaneColumns, PanelSums, SIDE, portable};

/// Number of `f32` lanes in a NEON register.
const QUARTER: usize = LANES / 4;

/// Partial sums of the dot products of four rows with four tokens, `[token][row]`. Each register contains a quarter
/// of the lanes of one dot product.
type QuarterLanes = [[float32x4_t; SIDE]; SIDE];

/// Returns the NEON kernel.
#[expect(unsafe_code)]
pub(super) fn kernels() -> impl Iterator<Item = Kernel> {
    // SAFETY: the kernel is returned only on machines with its instructions.
    let kernel = Kernel {
        name: "neon",
        block: portable::KERNEL.block,
        tiles: |weights, len, activations, sums| unsafe { tiles(weights, len, activations, sums) },
    };
    std::arch::is_aarch64_feature_detected!("neon").then_some(kernel).into_iter()
}

#[target_feature(enable = "neon")]
fn tiles(weights: &[LaneColumns], len: usize, activations: &[LaneColumns], sums: &mut PanelSums) {
    for (group, weights) in weights.chunks(len).enumerate() {
        let tile = tile(weights, activations);
        (0..SIDE).for_each(|token| sums[token][group] = tile[token]);
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn tile(weights: &[LaneColumns], activations: &[LaneColumns]) -> [[f32; SIDE]; SIDE] {
    let even = added(quarter::<0>(weights, activations), quarter::<2>(weights, activations));
    let odd = added(quarter::<1>(weights, activations), quarter::<3>(weights, activations));
    added(even, odd).map(|rows| in_rows(rows))
}

#[inline]
#[target_feature(enable = "neon")]
fn quarter<const INDEX: usize>(weights: &[LaneColumns], activations: &[LaneColumns]) -> QuarterLanes {
    let mut sums = [[vdupq_n_f32(0.0); SIDE]; SIDE];
    for (LaneColumns(w), LaneColumns(x)) in weights.iter().zip(activations) {
        let w: [float32x4_t; SIDE] = from_fn(|row| lanes::<INDEX>(&w[row]));
        for token in 0..SIDE {
            let x = lanes::<INDEX>(&x[token]);
            for row in 0..SIDE {
                sums[token][row] = vfmaq_f32(sums[token][row], w[row], x);
            }
        }
    }
    sums
}

#[inline]
#[target_feature(enable = "neon")]
fn lanes<const INDEX: usize>(step: &[f32; LANES]) -> float32x4_t {
    transmute!(step.as_chunks::<QUARTER>().0[INDEX])
}

#[inline]
#[target_feature(enable = "neon")]
fn added(a: QuarterLanes, b: QuarterLanes) -> QuarterLanes {
    from_fn(|token| from_fn(|row| vaddq_f32(a[token][row], b[token][row])))
}

/// Sums the lanes of each of four registers.
#[inline]
#[target_feature(enable = "neon")]
fn in_rows([a, b, c, d]: [float32x4_t; SIDE]) -> [f32; SIDE] {
    transmute!(vpaddq_f32(halves(a, b), halves(c, d)))
}

/// Adds the upper halves of two registers to the lower halves.
#[inline]
#[target_feature(enable = "neon")]
fn halves(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
    vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(a, b)), vreinterpretq_f32_f64(vzip2q_f64(a, b)))
}
