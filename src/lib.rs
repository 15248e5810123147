//! xcheck: does an inference engine compute what the reference computes, and if not, which operation is
//! the first that is wrong?
//!
//! The map of the crate, in the order in which things build on each other. What comes before `dump` is the reference engine,
//! `xcheck-engine`; of the rest, what is re-exported below is `xcheck-judge`:
//!
//! - [`architecture`]: the architectures that are known, and what files call them
//! - [`checkpoint`]: the twelve checkpoints and the tap points they are made of
//! - [`lazy_bytes`]: bytes of a file that need not all be here
//! - [`tensor`], [`weight`]: an activation; a stored tensor
//! - [`view`]: numbers where they lie, seen in another order
//! - [`error_map`]: where in an array errors are, and of what size
//! - [`measure`]: how far one array is from another
//! - [`error`]: every refusal
//! - [`memory`]: how much there is, asked before it is taken
//! - [`input`]: files that are read whole
//! - [`fatal_error`], [`shutdown`], [`atomic_write`]: what holds when something goes wrong: no memory, a signal, work that is half done
//! - [`tap`]: who looks at intermediate values, and may replace them
//! - [`mod@format`]: untrusted bytes to checked views: GGUF, safetensors, PyTorch, npy
//! - [`tokenizer`]: text to token ids and back
//! - [`ops`], [`quant`]: operations and block formats, without knowledge of models
//! - [`numerics`]: ways of computing, one per reference
//! - [`exact`]: what a stage comes to exactly, and how far honest rounding may take it
//! - [`model`]: one block diagram per architecture, and where its weights come from
//! - [`engine`]: passes and generation
//! - [`change`]: what ports get wrong: stages computed otherwise
//! - [`dump`]: the contract by which engines hand over their activations
//! - [`map`]: other programs' names for activations, so that their files are read as dumps
//! - [`identify`]: what arrays without a manifest are, by their values
//! - [`cases`]: known prompts and continuations, as references
//! - [`compare`]: alignment, tolerances, verdicts
//! - [`kld`]: log-probabilities as llama-perplexity keeps them, and its statistics
//! - [`plan`]: units that can be judged by themselves, and who judges which
//! - [`diagnose`]: what each stage introduces, the first divergence, verdicts
//! - [`selfcheck`]: what the engine must find of itself
//! - [`selftest`]: whether what judges others finds what is planted
//! - `probe`: what a running server computes, as tokens and log-probabilities show it
//! - [`mod@report`]: what a run has to say, one exporter per format
//! - [`ratchet`]: no worse than before: two reports, or a run and a baseline
//! - [`matrix`]: many comparisons in one table, each known by the content of what it reads
//! - [`disk_cache`]: the cache on disk: hashes of files, blocks of remote files
//! - [`mod@reference`]: references made here: engines' environments and scripts
//! - [`remote`]: files behind a URL, read in parts
//! - [`hub`]: public models: their names, the Hugging Face cache, downloads into it
//! - `serve` (a feature): a model behind the OpenAI API
//! - [`shipped_models`]: shipped models and references: one inside the program, the others in search folders
//! - [`cli`]: the commands
#![deny(missing_docs)]
// Where something else stands (maps of files, vector instructions, the last nets), the function says so.
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
pub mod serve;
pub mod shipped_models;

// The rooms of what computes and of what judges are known by their names here, too.
pub use xcheck_engine::{
    Error, Result, architecture, atomic_write, change, checkpoint, engine, error, error_map, exact,
    fatal_error, format, input, lazy_bytes, measure, memory, model, numerics, ops, parallel, quant, shutdown,
    tap, tensor, tokenizer, view, weight,
};
pub use xcheck_judge::{
    compare, diagnose, dump, identify, kld, map, plan, ratchet, report, selfcheck, selftest,
};
