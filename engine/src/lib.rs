//! The reference engine of xcheck: what other engines are held against.
//!
//! The map of the crate, in the order in which things build on each other:
//!
//! - [`architecture`]: the architectures that are known, and what files call them
//! - [`checkpoint`]: the twelve checkpoints and the tap points they are made of
//! - [`parallel`]: work for several threads, where it is worth waking them
//! - [`parts`]: bytes of a file that need not all be here
//! - [`tensor`], [`weight`]: an activation; a stored tensor
//! - [`view`]: numbers where they lie, seen in another order
//! - [`spread`]: where in an array errors are, and of what size
//! - [`measure`]: how far one array is from another
//! - [`error`]: every refusal
//! - [`memory`]: how much there is, asked before it is taken
//! - [`input`]: files that are read whole
//! - [`guard`], [`ending`], [`unfinished`]: what holds when something goes wrong: no memory, a signal, work that is half done
//! - [`tap`]: who looks at intermediate values, and may replace them
//! - [`mod@format`]: untrusted bytes to checked views: GGUF, safetensors, PyTorch, npy
//! - [`tokenizer`]: text to token ids and back
//! - [`ops`], [`quant`]: operations and block formats, without knowledge of models
//! - [`numerics`]: ways of computing, one per reference
//! - [`exact`]: what a stage comes to exactly, and how far honest rounding may take it
//! - [`model`]: one block diagram per architecture, and where its weights come from
//! - [`engine`]: passes and generation
//! - [`change`]: what ports get wrong: stages computed otherwise
#![deny(missing_docs)]
// Where something else stands (maps of files, vector instructions, the last nets), the function says so.
#![deny(unsafe_code)]

pub mod architecture;
pub mod change;
pub mod checkpoint;
pub mod ending;
pub mod engine;
pub mod error;
pub mod exact;
pub mod format;
pub mod guard;
pub mod input;
pub mod measure;
pub mod memory;
pub mod model;
pub mod numerics;
pub mod ops;
pub mod parallel;
pub mod parts;
pub mod quant;
pub mod spread;
pub mod tap;
pub mod tensor;
pub mod tokenizer;
pub mod unfinished;
pub mod view;
pub mod weight;

pub use error::{Error, Result};
