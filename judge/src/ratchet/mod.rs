//! Comparison with earlier results: two reports, or a run and a baseline of waived failures.
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
