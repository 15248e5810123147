//! xcheck: does an inference engine compute what the reference computes, and if not, which operation is
//! the first that is wrong?
//!
//! The map of the crate, in the order in which things are used:
//!
//! - [`checkpoint`]: the twelve checkpoints and the tap points they are made of
//! - [`tensor`], [`weight`]: an activation; a stored tensor
//! - [`tap`]: who looks at intermediate values
//! - [`error`]: every refusal
#![deny(missing_docs)]

pub mod checkpoint;
pub mod compare;
pub mod diagnose;
pub mod dump;
pub mod error;
pub mod format;
pub mod report;
pub mod tap;
pub mod tensor;
pub mod weight;

pub use error::{Error, Result};
