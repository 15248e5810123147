//! What the engine computes, looked at by itself, in one program. Tests that run models are with those of the command.

mod alibi;
mod attention;
mod cache_codes;
mod error_map;
mod expert_codes;
mod expert_weights;
mod four_bit_codes;
mod kernels;
mod lazy_bytes;
mod matrix_product;
mod matrix_scale;
mod parallel;
mod perturbed;
mod quant;
mod row_scale;
mod sampling;
mod separation;
#[expect(dead_code, reason = "shares of random cases are other tests'")]
#[path = "../../tests/common/share.rs"]
mod share;
mod sinks;
#[path = "../../tests/common/skip.rs"]
mod skip;
mod views;
mod zero_point;
