//! The result of comparing the arrays of one site.

use crate::measure::Measurement;

/// The result of comparing the arrays of a site.
#[derive(Clone, Debug, PartialEq)]
pub enum ArrayComparison {
    /// Both sides were compared.
    Measured(Measurement),
    /// The lengths differ, e.g. of a cache. This is a divergence.
    OtherLength(String),
    /// The values cannot be aligned, because the order of heads or experts is unknown.
    Unaligned(String),
}
