//! Comparison of a model with a dump, or of two dumps: the entry points, and the search for the causes of
//! failures.

mod case;
mod causes;
mod cross_check;
mod dump_stream;
mod integers;
mod longrope;

pub use case::{OwnTokens, check_case};
pub use causes::token_difference;
pub use cross_check::{UnitWork, cross_check, cross_check_dumps, cross_check_units};
pub use dump_stream::{DumpStream, MessageResult};
