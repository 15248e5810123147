//! xcheck: does an inference engine compute what the reference computes, and if not, which operation is the first that is wrong?
//!
//! The modules, in the order in which they depend on each other. Those before `dump` are the reference engine (package
//! `xcheck-engine`); the other re-exported ones are the judge (`xcheck-judge`).
//!
//! The reference engine:
//!
//! - [`architecture`]: known architectures and their names in files
//! - [`checkpoint`]: the twelve checkpoints and their taps
//! - [`parallel`]: loops over several threads, where the work is large enough
//! - [`lazy_bytes`]: bytes of a file that are downloaded on demand
//! - [`tensor`], [`weight`]: activations and stored tensors
//! - [`view`]: stored numbers under another order of axes
//! - [`error_map`]: errors of an array by position and magnitude
//! - [`measure`]: differences between two arrays
//! - [`error`]: error types and their messages
//! - [`memory`]: free memory, checked before large allocations
//! - [`input`]: small files that are read whole
//! - [`fatal_error`], [`shutdown`], [`atomic_write`]: out of memory and truncated files, signals, and files that appear only when they are complete
//! - [`tap`]: observers that read and may replace intermediate values
//! - [`mod@format`]: parsers of untrusted files: GGUF, safetensors, PyTorch, npy
//! - [`tokenizer`]: text to token ids and back
//! - [`kernels`], [`quant`]: dot products, matrix products and block formats
//! - [`ops`]: operations, one folder each: its definition, its exact evaluation with the error bound (`exact`), and the known
//!   mistakes of ports, such as a wrong `rope_theta` (`faults`). The three are layers: `exact` uses [`exact`], `faults` uses
//!   [`change`]
//! - [`numerics`]: rounding and order of sums, one implementation per engine that is imitated (llama.cpp, transformers, ...)
//! - [`exact`]: exact values with their rounding error bounds, rounding profiles, and whether rounding explains an error
//! - [`tracing`]: numerics that record the operation of each result, for its exact evaluation
//! - [`model`]: one block diagram per architecture, and its weights
//! - [`engine`]: forward passes and generation
//! - [`change`]: the framework of known mistakes: how to compute an operation with one, and how to recognise it in a dump
//! - [`catalogue`]: the known mistakes of all operations, and the changes that users name with `--suppose`
//!
//! The judge:
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
//! - [`evaluator`]: judges models that our engine does not know, with torch
//! - [`diagnose`]: judges a whole dump, against our engine or a second dump: the first wrong operation and its cause
//! - [`gap`]: log-probabilities of a rollout engine and a trainer: rounding or a fault?
//! - [`selfcheck`]: tests of the reference engine against itself
//! - [`selftest`]: measures missed faults and false alarms of the judge, with injected faults
//! - [`mod@report`]: the report of a run, one exporter per format (HTML, JSON, Markdown, JUnit, ...)
//! - [`ratchet`]: comparison of two reports, or of a report with a baseline
//!
//! The program:
//!
//! - [`cases`]: known prompts and continuations, as references
//! - `network` (a feature): HTTP requests
//! - `probe` (a feature): checks of a running server by its tokens and log-probabilities
//! - [`matrix`]: many comparisons in one table (terminal, JSON, HTML), cached by the content of what they read
//! - [`disk_cache`]: the cache on disk: hashes of files, blocks of remote files
//! - [`mod@reference`]: making references: engines' environments and scripts
//! - [`remote`]: files behind a URL, read in ranges
//! - [`hub`]: public models: their names, the Hugging Face cache, downloads into it
//! - `serve` (a feature): a model behind the OpenAI API
//! - [`shipped_models`]: shipped models and references: one inside the program, the others in search folders
//! - [`cli`]: the commands
// Code that only a feature uses is unused if the feature is off.
#![cfg_attr(not(all(feature = "cloud", feature = "serve")), allow(dead_code, unused_imports))]
#![deny(missing_docs)]
// Exceptions (memory maps, vector instructions, signal handlers) are marked at the function.
#![deny(unsafe_code)]

pub mod cases;
pub mod cli;
pub mod disk_cache;
pub mod hub;
pub mod matrix;
#[cfg(feature = "hub")]
pub mod network;
#[cfg(feature = "hub")]
pub mod probe;
pub mod reference;
pub mod remote;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub mod shipped_models;

// The modules of both packages have their names here, too.
pub use xcheck_engine::{
    Error, Result, architecture, atomic_write, catalogue, change, checkpoint, engine, error, error_map,
    exact, fatal_error, format, input, kernels, lazy_bytes, measure, memory, model, numerics, ops, parallel,
    quant, shutdown, tap, tensor, tokenizer, tracing, view, weight,
};
pub use xcheck_judge::{
    align, check, diagnose, dump, evaluator, gap, identify, kld, map, noise, plan, ratchet, report,
    selfcheck, selftest, verdict,
};
