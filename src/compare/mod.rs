//! Two arrays, two dumps, or a running engine and a dump: aligned, measured, judged.

mod metrics;
mod tolerance;
mod verdict;

pub use metrics::{Errors, Measurement, Worst, measure};
pub use tolerance::{Tolerance, Tolerances};
pub use verdict::{Row, Verdict};
