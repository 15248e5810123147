//! Judges dumps of models that our engine does not know: torch evaluates the model, the verdict is made here.
//!
//! A worker process runs the model of transformers in `f64`. Each module reads the candidate's own values, so that the
//! error of a module is its own. For every recorded output, the worker sends the exact value and the standard
//! deviation of its rounding error. docs/reference/evaluator-protocol.md describes the messages.

mod connection;
mod message;
mod module_check;
mod module_coverage;

pub use connection::EvaluatorConnection;
pub use module_check::{ModuleRules, check_modules};
