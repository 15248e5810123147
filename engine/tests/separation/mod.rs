//! Honest arithmetic never fails, and planted faults do: each operation in orders of sums that engines use, and with
//! errors that are as small as such errors get.

mod activations;
mod attention;
mod correct_bf16;
mod correct_f32;
mod criteria;
pub mod dice;
mod faults_attention;
mod faults_linear;
mod faults_norm;
mod linear;
mod norm;
mod order;
mod rope;
mod rounding;
mod scale;
mod specimen;
mod spread;
mod table;
