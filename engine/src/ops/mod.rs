//! Operations of a transformer. One folder holds one operation:
//!
//! - `mod.rs`: the formula, its shapes and source, and the definition as pure functions, independent of any model;
//! - `exact.rs`: the exact value of each result and its error bound, one `exact::Operation`;
//! - `faults.rs`: known mistakes of ports: how to compute the operation with each, and how to recognise it, as
//!   [`CatalogueEntry`](crate::change::CatalogueEntry).
//!
//! The files of a folder are three layers. Numerics ([`numerics`](crate::numerics)) use the definitions. The exact
//! evaluation builds on [`exact`](crate::exact) and is used by [`tracing`](crate::tracing). The faults build on
//! [`change`](crate::change) and are listed in [`catalogue`](crate::catalogue). `tests/architecture.rs` states what
//! each layer may use.

pub mod activation;
pub(crate) mod addition;
pub(crate) mod alibi;
pub(crate) mod altup;
pub mod attention;
pub(crate) mod cache;
pub(crate) mod decay;
pub(crate) mod delta_rule;
pub(crate) mod embedding;
pub mod experts;
pub(crate) mod gating;
pub(crate) mod hadamard;
pub(crate) mod l2_norm;
pub mod linear;
pub mod log_probabilities;
pub mod logits;
pub mod norm;
pub mod rope;
pub mod row_factor;
pub mod sampling;
pub mod scaling;
pub(crate) mod shared_expert;
pub mod short_convolution;
pub(crate) mod sparse_gate;
pub mod state_space;
