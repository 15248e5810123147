//! The result of comparing the arrays of one site.

use crate::measure::Measurement;

/// The result at a site.
#[derive(Clone, Debug, PartialEq)]
pub enum ArrayComparison {
    /// Both sides were compared.
    Measured(Measurement),
    /// Different lengths, which is a divergence: a cache of another length.
    OtherLength(String),
    /// Values whose alignment is unknown.
    Unaligned(String),
}
