//! The judge of xcheck: does a dump contain what the reference computes, and if not, which operation is the first that is wrong, and why?
//!
//! The modules, in the order in which they depend on each other. They use the reference engine, which is a separate
//! package.
//!
//! - [`dump`]: the format of recorded activations, its readers and writers
//! - [`map`]: names of activations in other programs, so that their files are read as dumps
//! - [`identify`]: assignment of arrays without names to taps, by their values
//! - [`align`]: arrays of a dump in canonical layout, by position; the selection of sites
//! - [`kld`]: llama-perplexity's files of log-probabilities, and its statistics
//! - [`plan`]: division of a comparison into units for several machines
//! - [`check`]: compares the values of two sources site by site: our engine and a dump, or two dumps
//! - [`noise`]: noise floors, measured with perturbed runs
//! - [`verdict`]: the rule that passes or fails a site and a dump, ties, coverage
//! - [`diagnose`]: judges a whole dump, against our engine or a second dump: the first wrong operation and its cause
//! - [`evaluator`]: judges outputs of modules, for models that torch evaluates in place of our engine
//! - [`gap`]: log-probabilities of a rollout engine and a trainer: rounding or a fault?
//! - [`selfcheck`]: tests of the reference engine against itself
//! - [`selftest`]: measures missed faults and false alarms of the judge, with injected faults
//! - [`mod@report`]: the report of a run, one exporter per format (HTML, JSON, Markdown, JUnit, ...)
//! - [`ratchet`]: comparison of two reports, or of a report with a baseline
//!
//! Each step makes one record of the one before:
//!
//! 1. [`dump::Dump`]: the recorded arrays
//! 2. [`align::AlignedDump`]: the arrays in canonical layout
//! 3. `align::DumpSite`: one tap at its positions, regardless of the passes that recorded them
//! 4. `check::SiteCheck`: the differences at a site in one run, and whether rounding explains them
//! 5. [`verdict::SiteResult`]: the differences at a site in all runs, and their verdict
//! 6. [`verdict::Evidence`]: all sites of a unit
//! 7. [`verdict::Outcome`]: the verdict of the dump, with its causes
//! 8. [`report::Report`]: all dumps of a run
#![deny(missing_docs)]
// Exceptions (maps of files) are marked at the function.
#![deny(unsafe_code)]

pub mod align;
pub mod check;
pub mod diagnose;
pub mod dump;
pub mod evaluator;
pub mod gap;
pub mod identify;
pub mod kld;
pub mod map;
pub mod noise;
pub mod plan;
pub mod ratchet;
pub mod report;
pub mod selfcheck;
pub mod selftest;
pub mod verdict;

// The engine's modules have the same names here.
use xcheck_engine::{
    architecture, atomic_write, catalogue, change, checkpoint, engine, error, error_map, exact, format,
    input, json_number, library_panic, measure, memory, model, numerics, ops, parallel, tap, tensor, tracing,
    view, weight,
};
