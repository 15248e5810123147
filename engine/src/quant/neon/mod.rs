//! Dot products for aarch64 with the dot product instructions (ARMv8.2): faster than the portable code, with the same
//! bits.
//!
//! Loops over bytes stay in the portable code, which compilers vectorise well. Code with special instructions
//! exists for four products per lane, table look-ups, bit operations and `f16`. Registers are loaded from arrays of
//! their size, so only the selection of the functions, and instructions without a stable Rust function, are unsafe.

mod codes;
mod floats;
pub(super) mod half;
mod k_quants;
mod k_quants_tile;
mod q_asymmetric;
mod q_symmetric;
mod registers;
mod tile;
mod wide_block;

use super::{Dot, DotTile};
use crate::weight::DType;

/// Wraps functions that need special instructions, so that they can be called safely.
macro_rules! detected {
    ($dtype:expr; $($variant:ident $kernel:path;)*) => {
        match $dtype {
            _ if !found() => None,
            $(DType::$variant => {
                // SAFETY: the line above checks for the instructions that this module's functions need.
                Some(|from, to| unsafe { $kernel(from, to) })
            })*
            _ => None,
        }
    };
}

/// Returns the NEON dot product for one token, with the bits of the portable code.
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
        IQ1_S k_quants::iq1_s;
        IQ1_M k_quants::iq1_m;
        IQ2_XXS k_quants::iq2_xxs;
        IQ2_XS k_quants::iq2_xs;
        IQ2_S k_quants::iq2_s;
        IQ3_XXS k_quants::iq3_xxs;
        IQ3_S k_quants::iq3_s;
        Q1_0 wide_block::q1_0;
        Q2_0 wide_block::q2_0;
        NVFP4 wide_block::nvfp4;
    }
}

/// Returns the NEON dot product for several tokens, if its order differs from that for one token.
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
        IQ1_S k_quants::iq1_s_batch;
        IQ1_M k_quants::iq1_m_batch;
        IQ2_XXS k_quants::iq2_xxs_batch;
        IQ2_XS k_quants::iq2_xs_batch;
        IQ2_S k_quants::iq2_s_batch;
        IQ3_XXS k_quants::iq3_xxs_batch;
        IQ3_S k_quants::iq3_s_batch;
    }
}

/// Returns the NEON dot product of F16 weights with F32 activations.
#[expect(unsafe_code)]
pub(super) fn mixed_dot() -> Option<Dot> {
    detected! { DType::F16; F16 floats::batch_dot_f16_f32; }
}

/// Returns the NEON tile of eight dot products, in the summation order for several tokens.
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

/// Returns true if the machine has the instructions, and little-endian byte order, which the register loads assume.
fn found() -> bool {
    use std::arch::is_aarch64_feature_detected as has;
    cfg!(target_endian = "little") && has!("neon") && has!("dotprod")
}
