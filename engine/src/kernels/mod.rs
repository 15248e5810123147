//! Numeric kernels that several operations share: dot products, matrix products, an exponential.

pub mod dot;
pub mod elementwise;
pub mod exp;
pub mod panels;
pub mod product;
