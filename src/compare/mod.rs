//! Two arrays, two dumps, or a running engine and a dump: aligned by position, measured, judged.

mod align;
mod at;
mod choices;
mod cut;
mod explained;
mod grain;
mod held;
mod live;
mod metrics;
mod pair;
mod selection;
mod shown;
mod sketches;
mod sums;
mod tolerance;
mod unexplained;
mod verdict;
mod visible;

pub use align::{Heads, aligned};
pub use choices::{Choices, logits_after};
pub use explained::Explained;
pub use grain::{Grain, coarser, half_step};
pub use held::Held;
pub use live::{Compared, Continue, Engine, Found, LiveComparison, Role};
pub use metrics::{
    Columns, Errors, Measurement, NO_TOKEN, Nonfinite, Worst, measure, measure_tokens, unravel,
};
pub use pair::{Pair, Paired};
pub use selection::{Checkpoints, Ranges, Selection};
pub use sketches::{measure_sketches, sketch_of};
pub use sums::larger;
pub use tolerance::{Tolerance, Tolerances};
pub use unexplained::Unexplained;
pub use verdict::{Doubt, Floor, Gate, Known, Measure, Observed, Row, Verdict};
pub use visible::Sight;
