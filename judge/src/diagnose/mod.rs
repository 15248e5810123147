//! Finds the first divergence of two runs, and whether an operation made its error or inherited it.

mod budget;
mod case;
mod causes;
mod check;
mod conclusion;
mod dump_stream;
mod evidence;
mod experts;
mod half_precision;
mod integers;
mod layers;
mod logprob_noise;
mod longrope;
mod noise_floor;
mod noise_floor_verdict;
mod outcome;
mod rules;
mod runs;
mod starting_values;
mod ties;
mod unit_rows;

pub use budget::Budget;
pub use case::{OwnTokens, check_case};
pub use causes::{Cause, CauseContent, CauseSearch, Finding, FittingChange, changes_of};
pub use check::{OutcomeCallback, UnitWork, cross_check, cross_check_dumps, cross_check_units};
pub use conclusion::{NOT_RECORDED, conclude, once_each};
pub use dump_stream::{DumpStream, MessageResult};
pub use evidence::{Basis, Evidence, MissingSite};
pub use outcome::{CheckpointSummary, ComparisonSubject, Coverage, Outcome};
pub use rules::{EngineRounding, Mode, Rules};
