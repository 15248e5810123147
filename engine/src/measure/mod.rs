//! Comparison of two arrays: all metrics in one pass, without the errors that storage may have caused.

mod agreement;
mod distribution;
mod grain;
mod lanes;
mod measurement;
mod metrics;
mod prediction;
mod sides;
pub mod sketch;
mod sums;
mod tops;

pub use distribution::{Class, Distribution};
pub use grain::{Grain, Slack, coarser, half_step, nearest_within};
pub use measurement::{Agreement, Errors, Measurement, Nonfinite, Placed, Tops, Worst};
pub use metrics::{NO_TOKEN, measure, measure_placed, measure_tokens, unravel};
pub use prediction::{Judged, Prediction};
pub use sides::Columns;
pub use sums::larger;
