//! Operations of a transformer as pure functions, independent of any model.

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
pub mod shared_expert;
pub mod yarn;
