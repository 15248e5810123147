//! References made on this machine: an engine's environment, made once, and a dump by the engine's script.
//!
//! Everything takes its final name when it is whole ([`PendingOutput`]); what is asked, shown and looked for is others' business.

mod dump_request;
mod engine;
mod environment;
mod pending_output;
mod process;
mod reference_folder;

pub use dump_request::{DumpRequest, ReferenceInput};
pub use engine::{EngineInput, ReferenceEngine};
pub use environment::{Installer, PythonEnvironment};
pub use pending_output::PendingOutput;
pub use process::ProcessObserver;
pub use reference_folder::ReferenceFolder;
