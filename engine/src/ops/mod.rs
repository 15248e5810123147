//! The operations of a transformer as pure functions: new output, no knowledge of any model.

pub mod attention;
pub mod dot;
pub mod exp;
pub mod experts;
pub mod ffn;
pub mod linear;
pub mod multiplier;
pub mod norm;
pub mod product;
pub mod rope;
pub mod sampling;
