//! Comparison of two arrays: all metrics in one pass, excluding errors that storage may have caused.

mod agreement;
mod array_pair;
mod distribution;
mod lanes;
mod measurement;
mod metrics;
mod precision;
mod prediction;
pub mod sketch;
mod sums;
mod top_tokens;

pub use array_pair::ColumnSelection;
pub use distribution::{Distribution, SizeClass};
pub use measurement::{
    Agreement, Errors, LikelyToken, Measurement, NonfiniteCounts, PositionAgreement, Tops, WorstElement,
};
pub use metrics::{NO_TOKEN, measure, measure_placed, measure_tokens, unravel};
pub use precision::{LogprobPrecision, ValuePrecision, coarser, half_step, nearest_within};
pub use prediction::{Prediction, PredictionDifference};
pub use sums::larger;
