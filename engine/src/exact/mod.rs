//! Exact values of operations, and their error bounds: the framework that each operation's exact evaluation
//! (`ops/<operation>/exact.rs`) plugs into, as one implementation of `Operation`.
//!
//! The module is independent of the kernels of [`numerics`](crate::numerics). Every operation is evaluated again, in
//! `f64`, from its inputs and a [`Profile`] of where and how an engine rounds. Each result is an [`ExactValue`]: a
//! value, the standard deviation of unbiased rounding in any order of summation, and a radius that no correct engine
//! exceeds.
//!
//! [`TracedNumerics`](crate::tracing::TracedNumerics) record how each result was computed
//! ([`Tensor::origins`](crate::tensor::Tensor::origins)). Results are evaluated on demand. The uncertainty of an
//! operation's inputs is propagated to its results.
//!
//! Sources of the formulas: Higham & Mary, 2019, and Ipsen & Zhou, 2019, for sums with unbiased roundings. See
//! docs/explanation/verdicts.md.

mod alternatives;
mod bias;
mod choice;
pub(crate) mod dot;
mod error_statistics;
mod float;
pub(crate) mod gather;
pub(crate) mod input;
pub(crate) mod operand;
pub(crate) mod operation;
mod profile;
mod result_pair;
mod shipped_profiles;
pub(crate) mod tiles;
pub(crate) mod unrounded_origin;
pub(crate) mod value;
mod verdict;

pub use bias::{BiasEstimate, BiasGroup};
pub use choice::{Choice, ChoiceSet};
pub use error_statistics::{errors_of, rms_in_sigmas};
pub use float::Float;
pub use input::known;
pub(crate) use operation::{ColumnEvaluator, Operation};
pub use operation::{Node, evaluate, is_given, node_of, type_of_results, within};
pub use profile::{Angles, FusedResults, Operands, Profile};
pub(crate) use profile::{RowScales, ScaledOperand};
pub use result_pair::{EngineErrors, InexactValue, ResultPair};
pub use unrounded_origin::{in_place_of, of_a_kernel};
pub use value::{ExactValue, K, LAMBDA};
pub(crate) use verdict::exacts_explain;
pub use verdict::{DEEPEST, OperationVerdict, judge, unexplained};
