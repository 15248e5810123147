//! Two arrays, two dumps, or a running engine and a dump: aligned, measured, judged.

mod align;
mod live;
mod metrics;
mod pair;
mod selection;
mod spread;
mod tolerance;
mod verdict;

pub use align::aligned;
pub use live::{Continue, LiveComparison};
pub use metrics::{Errors, Measurement, NO_TOKEN, Worst, measure, measure_tokens};
pub use pair::{Pairing, compare_dumps};
pub use selection::{Checkpoints, Ranges, Selection};
pub use tolerance::{Tolerance, Tolerances};
pub use verdict::{Row, Verdict};
