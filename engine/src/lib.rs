//! The reference engine of xcheck, which other engines are compared with.
//!
//! The modules, in the order in which they depend on each other:
//!
//! - [`architecture`]: known architectures and their names in files
//! - [`checkpoint`]: the twelve checkpoints and their taps
//! - [`parallel`]: loops over several threads, where the work is large enough
//! - [`lazy_bytes`]: bytes of a file that are downloaded on demand
//! - [`library_panic`]: calls of libraries that panic for some damaged files
//! - [`tensor`], [`weight`]: activations and stored tensors
//! - [`view`]: stored numbers under another order of axes
//! - [`error_map`]: errors of an array by position and magnitude
//! - `exponential`: e^x in `f64`, for loops that compilers vectorise
//! - [`json_number`]: numbers in JSON, NaN and infinities included
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
#![deny(missing_docs)]
// Exceptions (maps of files, vector instructions, the allocator) are stated at their functions.
#![deny(unsafe_code)]

pub mod architecture;
pub mod atomic_write;
pub mod catalogue;
pub mod change;
pub mod checkpoint;
pub mod engine;
pub mod error;
pub mod error_map;
pub mod exact;
pub(crate) mod exponential;
pub mod fatal_error;
pub mod format;
pub mod input;
pub mod json_number;
pub mod kernels;
pub mod lazy_bytes;
pub mod library_panic;
pub mod measure;
pub mod memory;
pub mod model;
pub mod numerics;
pub mod ops;
pub mod parallel;
pub mod quant;
pub mod shutdown;
pub mod tap;
pub mod tensor;
pub mod tokenizer;
pub mod tracing;
pub mod view;
pub mod weight;

pub use error::{Error, Result};
