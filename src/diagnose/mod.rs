//! Where two runs part first, and whether a stage made its error or inherited it.

mod outcome;

pub use outcome::{Coverage, Mode, Outcome, Summary};
