//! Quantised formats against what the gguf package and a real libggml make of the same bytes.

mod faults;
mod golden;
mod llama2c;
mod outliers;
mod scales;
mod simd;
mod ternary;
mod vectors;
mod weight_rounding;
