//! References made on this machine: an engine's environment, made once, and a dump by the engine's script.
//!
//! Everything takes its final name when it is whole ([`Making`]); what is asked, shown and looked for is others' business.

mod engine;
mod environment;
mod making;
mod order;
mod process;
mod workplace;

pub use engine::{Engine, Takes};
pub use environment::{Environment, Installer};
pub use making::Making;
pub use order::{Input, Order};
pub use process::Watch;
pub use workplace::Workplace;
