//! The dot products for x86-64 with AVX2, FMA and F16C: the same bits as the plain code, faster.
//!
//! Registers are filled from arrays of their size, so that only [`dot`], which hands the functions out, is unsafe.

mod affine;
mod large;
mod plain;
mod registers;
mod signed;

use super::Dot;
use crate::weight::DType;

/// Gives safe access to functions that need instructions of their own.
macro_rules! detected {
    ($dtype:expr; $($variant:ident $kernel:path;)*) => {
        match $dtype {
            $(DType::$variant => {
                // SAFETY: this function is only handed out behind the detection of what it needs.
                Some(|weights, activations| unsafe { $kernel(weights, activations) })
            })*
            _ => None,
        }
    };
}

/// The dot product for weights of this type, if this machine has the instructions for it.
pub(super) fn dot(dtype: DType) -> Option<Dot> {
    let found = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    if !found {
        return None;
    }
    detected! { dtype;
        F32 plain::dot_f32;
        F16 plain::dot_f16;
        BF16 plain::dot_bf16;
        Q4_0 signed::q4_0;
        Q4_1 affine::q4_1;
        Q5_0 signed::q5_0;
        Q5_1 affine::q5_1;
        Q8_0 signed::q8_0;
        IQ4_NL signed::iq4_nl;
        MXFP4 signed::mxfp4;
        Q2_K large::q2_k;
        Q3_K large::q3_k;
        Q4_K large::q4_k;
        Q5_K large::q5_k;
        Q6_K large::q6_k;
        IQ4_XS large::iq4_xs;
        TQ1_0 large::tq1_0;
        TQ2_0 large::tq2_0;
    }
}
