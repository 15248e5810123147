//! Numeric kernels that several operations share: dot products, matrix products, an exponential.

pub mod dot;
pub mod elementwise;
pub(crate) mod exp;
pub(crate) mod panels;
pub mod product;
pub(crate) mod softplus;
