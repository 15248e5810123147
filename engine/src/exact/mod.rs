//! Exact values of operations, and their error bounds.
//!
//! Beside [`numerics`](crate::numerics), and independent of their kernels: every operation again, in `f64`, from the
//! values that it was given and a [`Profile`] of where and how an engine rounds. Each result is an [`Exact`]: a value, the
//! sigma that zero-mean roundings in any order of sums give it, and a radius that no honest engine leaves.
//!
//! [`Traced`] numerics remember of each result how it was computed ([`Tensor::origins`](crate::tensor::Tensor::origins));
//! nothing is evaluated until somebody asks for it. Where a stage starts from values that are themselves only known
//! within a radius, that travels on.
//!
//! Sources of the formulas: Higham & Mary, 2019, and Ipsen & Zhou, 2019, for sums whose roundings have no direction; see
//! docs/explanation/verdicts.md.

mod activation;
mod attention;
mod bias;
mod compared;
mod dot;
mod elementwise;
mod experts;
mod exponential;
mod float;
mod input;
mod integer_search;
mod integers;
mod judged;
mod linear;
mod logprobs;
mod measured;
mod norm;
mod operand;
mod profile;
mod rearranged;
mod rotary;
mod row_scale;
mod shipped;
mod stage;
mod tiles;
mod traced;
mod unrounded;
mod value;

pub use activation::Activated;
pub use attention::{Context, Scores, Softmax};
pub use bias::{Bias, Strand};
pub use compared::{Compared, Off, Side};
pub use elementwise::{Cached, CachedCodes, Embedded, LastRow, Probabilities, Sum, Times};
pub use experts::{Mixed, Routed, Weighed};
pub use float::Float;
pub use input::known;
pub use integer_search::{IntegerProducts, products_that_explain};
pub use integers::Integers;
pub use judged::{DEEPEST, Judged, judge, unexplained};
pub use linear::Linear;
pub use logprobs::LogProbabilities;
pub use norm::{Layer, Rms};
pub use profile::{Angles, Choice, Choices, Fused, Operands, Profile, RowScales, Scaled};
pub use rotary::Rotary;
pub use row_scale::scales_of_row;
pub use stage::{ByColumns, Node, Stage, evaluate, is_given, node_of, type_of_results, within};
pub use traced::Traced;
pub use unrounded::{in_place_of, of_a_kernel};
pub use value::{Exact, LAMBDA};
