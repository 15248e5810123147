//! Comparison with earlier results: two reports, or a run and a baseline of waived failures.
//!
//! Both comparisons use only the data in `report.json`. So reports of other builds can be read, and other
//! programs can reproduce the decisions.

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
