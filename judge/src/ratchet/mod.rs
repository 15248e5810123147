//! No worse than before: two reports held against each other, and a run against a baseline of what is known to fail.
//!
//! Both look at what `report.json` says, so that reports of other builds can be read, and whatever is written there decides
//! alike here and in other programs.

mod baseline;
mod blocks;
mod diff;
mod gate;
mod size;
mod told;
mod update;

pub use baseline::Baseline;
pub use diff::{Change, Class, Diff};
pub use gate::gate;
pub use told::{json, markdown, table};
pub use update::updated;
