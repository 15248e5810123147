//! Where two runs part first, and whether a stage made its error or inherited it.

mod case;
mod causes;
mod check;
mod floor;
mod judge;
mod layers;
mod outcome;
mod runs;
mod segment;
mod ties;
mod weigh;

pub use case::{OwnTokens, check_case};
pub use causes::Finding;
pub use check::{Rules, cross_check, cross_check_dumps};
pub use outcome::{Coverage, Mode, Outcome, Summary};
