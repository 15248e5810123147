//! The result of comparing the arrays of one site.

use crate::measure::Measurement;

/// The result at a site.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// Both sides were compared.
    Measured(Measurement),
    /// They cannot be compared, and that is a divergence: a cache of another length.
    OtherLength(String),
    /// Nothing tells how the two are to be aligned.
    Unaligned(String),
}
