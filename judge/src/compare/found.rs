//! What comparing the arrays of one place came to.

use crate::measure::Measurement;

/// What was found at a place.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// Both sides were compared.
    Measured(Measurement),
    /// They cannot be compared, and that is a divergence: a cache of another length.
    OtherLength(String),
    /// Nothing tells how the two are to be aligned.
    Unaligned(String),
}
