//! The judge of xcheck: does an engine's dump say what the reference computes, and if not, where does it part first, and why?
//!
//! The map of the crate, in the order in which things build on each other; below it is the reference engine, a package of its
//! own:
//!
//! - [`dump`]: the contract by which engines hand over their activations
//! - [`map`]: other programs' names for activations, so that their files are read as dumps
//! - [`identify`]: what arrays without a manifest are, by their values
//! - [`compare`]: alignment, tolerances, verdicts
//! - [`kld`]: log-probabilities as llama-perplexity keeps them, and its statistics
//! - [`plan`]: units that can be judged by themselves, and who judges which
//! - [`diagnose`]: what each stage introduces, the first divergence, verdicts
//! - [`selfcheck`]: what the engine must find of itself
//! - [`selftest`]: whether what judges others finds what is planted
//! - [`mod@report`]: what a run has to say, one exporter per format
//! - [`ratchet`]: no worse than before: two reports, or a run and a baseline
#![deny(missing_docs)]
// Where something else stands (maps of files), the function says so.
#![deny(unsafe_code)]

pub mod compare;
pub mod diagnose;
pub mod dump;
pub mod identify;
pub mod kld;
pub mod map;
pub mod plan;
pub mod ratchet;
pub mod report;
pub mod selfcheck;
pub mod selftest;

// The engine's rooms are known by their names here, too.
use xcheck_engine::{
    architecture, atomic_write, change, checkpoint, engine, error, error_map, exact, format, input, measure,
    memory, model, numerics, ops, parallel, tap, tensor, view, weight,
};
