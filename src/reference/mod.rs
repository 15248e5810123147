//! References made on this machine: the environment of an engine, made once, and a dump by the engine's
//! script.
//!
//! Every output gets its final name only when it is complete ([`PendingOutput`]). Options, progress and questions
//! to the user are in `cli`.

mod dump_request;
mod engine;
mod environment;
mod evaluator;
mod pending_output;
mod process;
mod reference_folder;
mod watched_output;

pub(crate) use dump_request::{DumpRequest, ReferenceInput};
pub(crate) use engine::EngineInput;
pub use engine::ReferenceEngine;
pub(crate) use environment::{Installer, PythonEnvironment};
pub(crate) use evaluator::EvaluatorProcess;
pub use pending_output::PendingOutput;
pub(crate) use process::ProcessObserver;
pub use reference_folder::ReferenceFolder;
