//! The dot products for aarch64 with the dot product instructions (ARMv8.2): the same bits as the plain code, faster.
//!
//! What is unpacked by loops over bytes is left to the plain code, of which the compiler makes the same instructions;
//! written by hand is what it does not find: four products to a lane, tables, bits, and `f16`. Registers are filled from
//! arrays of their size, so that only handing the functions out, and the instructions that have no stable function yet,
//! are unsafe.

mod codes;
mod floats;
pub(super) mod half;
mod k_quants;
mod k_quants_tile;
mod q_asymmetric;
mod q_symmetric;
mod registers;
mod tile;

use super::{Dot, DotTile};
use crate::weight::DType;

/// Gives safe access to functions that need instructions of their own.
macro_rules! detected {
    ($dtype:expr; $($variant:ident $kernel:path;)*) => {
        match $dtype {
            _ if !found() => None,
            $(DType::$variant => {
                // SAFETY: the line above has found the instructions that the functions of this module need.
                Some(|from, to| unsafe { $kernel(from, to) })
            })*
            _ => None,
        }
    };
}

/// Twins of the dot products for one token.
#[expect(unsafe_code)]
pub(super) fn dot(dtype: DType) -> Option<Dot> {
    detected! { dtype;
        F32 floats::dot_f32;
        F16 floats::dot_f16;
        BF16 floats::dot_bf16;
        Q4_0 q_symmetric::q4_0;
        Q4_1 q_asymmetric::q4_1;
        Q5_0 q_symmetric::q5_0;
        Q5_1 q_asymmetric::q5_1;
        Q8_0 q_symmetric::q8_0;
        Q2_K k_quants::q2_k;
        Q3_K k_quants::q3_k;
        Q4_K k_quants::q4_k;
        Q5_K k_quants::q5_k;
        Q6_K k_quants::q6_k;
        IQ4_NL q_symmetric::iq4_nl;
        IQ4_XS k_quants::iq4_xs;
        TQ1_0 k_quants::tq1_0;
        TQ2_0 k_quants::tq2_0;
        MXFP4 q_symmetric::mxfp4;
    }
}

/// Twins of the dot products for several tokens, where those are others.
#[expect(unsafe_code)]
pub(super) fn batch_dot(dtype: DType) -> Option<Dot> {
    detected! { dtype;
        F32 floats::batch_dot_f32;
        F16 floats::batch_dot_f16;
        BF16 floats::batch_dot_bf16;
        IQ4_NL q_symmetric::iq4_nl_batch;
        Q2_K k_quants::q2_k_batch;
        Q3_K k_quants::q3_k_batch;
        Q4_K k_quants::q4_k_batch;
        Q5_K k_quants::q5_k_batch;
        Q6_K k_quants::q6_k_batch;
        IQ4_XS k_quants::iq4_xs_batch;
    }
}

/// Twin of the dot product of F16 weights with F32 activations.
#[expect(unsafe_code)]
pub(super) fn mixed_dot() -> Option<Dot> {
    detected! { DType::F16; F16 floats::batch_dot_f16_f32; }
}

/// Twins of eight dot products at once, in the order of sums for several tokens.
#[expect(unsafe_code)]
pub(super) fn tile(dtype: DType) -> Option<DotTile> {
    detected! { dtype;
        Q4_0 tile::q4_0;
        Q5_0 tile::q5_0;
        Q8_0 tile::q8_0;
        IQ4_NL tile::iq4_nl_batch;
        Q2_K k_quants_tile::q2_k;
        Q3_K k_quants_tile::q3_k;
        Q4_K k_quants_tile::q4_k;
        Q5_K k_quants_tile::q5_k;
        Q6_K k_quants_tile::q6_k;
        IQ4_XS k_quants_tile::iq4_xs;
    }
}

/// Registers are filled as little-endian machines do.
fn found() -> bool {
    use std::arch::is_aarch64_feature_detected as has;
    cfg!(target_endian = "little") && has!("neon") && has!("dotprod")
}
