//! Two arrays, two dumps, or a running engine and a dump: aligned by position, measured, judged.

mod align;
mod at;
mod choices;
mod cut;
mod explained;
mod grain;
mod held;
mod live;
mod logprobs;
mod metrics;
mod pair;
mod ranks;
mod routers;
mod selection;
mod shown;
mod sketches;
mod slots;
mod stands;
mod sums;
mod tolerance;
mod tops;
mod unexplained;
mod verdict;
mod visible;

pub use align::{Heads, aligned};
pub use choices::{Choices, logits_after};
pub use explained::Explained;
pub use grain::{Grain, coarser};
pub use held::Held;
pub use live::{Compared, Continue, Engine, Found, LiveComparison, Role};
pub use logprobs::{Agreement, Named, Placed, Ranked};
pub use metrics::{
    Columns, Errors, Measurement, NO_TOKEN, Nonfinite, Worst, measure, measure_tokens, unravel,
};
pub use pair::{Pair, Paired};
pub use routers::Preference;
pub use selection::{Checkpoints, Ranges, Selection};
pub use sketches::{measure_sketches, sketch_of};
pub use stands::StandsFor;
pub use sums::larger;
pub use tolerance::{Tolerance, Tolerances};
pub use tops::Tops;
pub use unexplained::Unexplained;
pub use verdict::{Doubt, Floor, Gate, Known, Measure, Observed, Row, Verdict};
pub use visible::Sight;
