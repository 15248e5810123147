//! Exact values of operations, and their error bounds.
//!
//! The module is independent of the kernels of [`numerics`](crate::numerics). It evaluates every operation again, in
//! `f64`,
//! from its inputs and a [`Profile`] of where and how an engine rounds. Each result is an [`ExactValue`]: a value, the
//! standard deviation of unbiased rounding in any order of summation, and a radius that no correct engine exceeds.
//!
//! [`TracedNumerics`] record how each result was computed ([`Tensor::origins`](crate::tensor::Tensor::origins)). Results are
//! evaluated on demand. The uncertainty of an operation's inputs is propagated to its results.
//!
//! Sources of the formulas: Higham & Mary, 2019, and Ipsen & Zhou, 2019, for sums with unbiased roundings. See
//! docs/explanation/verdicts.md.

mod activation;
mod alternatives;
mod attention;
mod bias;
mod choice;
mod dot;
mod elementwise;
mod error_statistics;
mod experts;
mod exponential;
mod float;
mod gather;
mod input;
mod integer_search;
mod integers;
mod linear;
mod logprobs;
mod norm;
mod operand;
mod operation;
mod profile;
mod result_pair;
mod rotary;
mod row_scale;
mod shared_expert;
mod shipped_profiles;
mod tiles;
mod tracing;
mod unrounded_origin;
mod value;
mod verdict;

pub use activation::Nonlinearity;
pub use attention::{AttentionContext, Scores, Softmax};
pub use bias::{BiasEstimate, BiasGroup};
pub use choice::{Choice, ChoiceSet};
pub use elementwise::{Addition, CachedCodes, CachedRows, EmbeddingLookup, LastRow, Probabilities, Scaling};
pub use experts::{ExpertMixture, ExpertProducts, ExpertWeights};
pub use float::Float;
pub use input::known;
pub use integer_search::{IntegerProducts, products_that_explain};
pub use integers::Integers;
pub use linear::Linear;
pub use logprobs::LogProbabilities;
pub use norm::{LayerNormalisation, RmsNormalisation};
pub use operation::{ColumnEvaluator, Node, Operation, evaluate, is_given, node_of, type_of_results, within};
pub use profile::{Angles, FusedResults, Operands, Profile, RowScales, ScaledOperand};
pub use result_pair::{EngineErrors, InexactValue, ResultPair};
pub use rotary::Rotary;
pub use row_scale::scales_of_row;
pub use shared_expert::SharedSum;
pub use tracing::TracedNumerics;
pub use unrounded_origin::{in_place_of, of_a_kernel};
pub use value::{ExactValue, LAMBDA};
pub use verdict::{DEEPEST, OperationVerdict, judge, unexplained};
