//! Where two runs part first, and whether a stage made its error or inherited it.

mod case;
mod check;
mod floor;
mod hypotheses;
mod judge;
mod layers;
mod outcome;
mod runs;
mod segment;
mod ties;
mod weigh;

pub use case::{OwnTokens, check_case};
pub use check::{Rules, cross_check, cross_check_dumps};
pub use hypotheses::Finding;
pub use outcome::{Coverage, Mode, Outcome, Summary};
