//! Comparison with earlier results: two reports, or a run and a baseline of waived failures.
//!
//! Both look at what `report.json` says, so that reports of other builds can be read, and whatever is written there decides
//! alike here and in other programs.

mod baseline;
mod blocks;
mod diff;
mod diff_output;
mod gate;
mod size;
mod update;

pub use baseline::Baseline;
pub use diff::{Change, Class, Diff};
pub use diff_output::{json, markdown, table};
pub use gate::gate;
pub use update::updated;
