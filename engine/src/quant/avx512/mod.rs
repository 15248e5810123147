//! Tiles for x86-64 with AVX-512 (F, BW and VNNI). One register contains two rows of weights. Integer sums are
//! exact in any order, and sums of blocks use the same lanes and roundings as [`super::avx2`].

mod k_quants;
mod q_symmetric;

use super::DotTile;
use crate::weight::DType;

/// Wraps functions that need special instructions, so that they can be called safely.
macro_rules! detected {
    ($dtype:expr; $($variant:ident $tile:path;)*) => {
        match $dtype {
            _ if !found() => None,
            $(DType::$variant => {
                // SAFETY: the line above checks for the instructions that this module's functions need.
                Some(|weights, activations| unsafe { $tile(weights, activations) })
            })*
            _ => None,
        }
    };
}

/// Returns the AVX-512 tile of eight dot products, in the summation order for several tokens.
#[expect(unsafe_code)]
pub(super) fn tile(dtype: DType) -> Option<DotTile> {
    detected! { dtype;
        Q4_0 q_symmetric::q4_0;
        Q5_0 q_symmetric::q5_0;
        Q8_0 q_symmetric::q8_0;
        IQ4_NL q_symmetric::iq4_nl_batch;
        Q2_K k_quants::q2_k;
        Q4_K k_quants::q4_k;
        Q5_K k_quants::q5_k;
        Q6_K k_quants::q6_k;
    }
}

fn found() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni")
}
