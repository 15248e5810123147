//! The first divergence of two runs, and whether an operation made its error or inherited it.

mod budget;
mod case;
mod causes;
mod chances;
mod check;
mod conclude;
mod evidence;
mod experts;
mod floor;
mod half_precision;
mod integers;
mod judge;
mod layers;
mod longrope;
mod outcome;
mod rules;
mod runs;
mod segment;
mod streamed;
mod ties;
mod weigh;

pub use budget::Budget;
pub use case::{OwnTokens, check_case};
pub use causes::{Cause, Finding, Fit, Sought, Told};
pub use check::{Finished, Work, cross_check, cross_check_dumps, cross_check_units};
pub use conclude::{NOT_RECORDED, conclude, once_each};
pub use evidence::{Basis, Evidence, Missing};
pub use outcome::{Coverage, Outcome, Subject, Summary};
pub use rules::{Mode, Rounding, Rules};
pub use streamed::{Judged, Streamed};
