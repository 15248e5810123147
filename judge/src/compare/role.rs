//! Roles in a comparison, and the values that a run along a dump continues with.

use crate::checkpoint::{Point, ValueKind};

/// The role of a dump that is compared with our engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The dump is judged against our engine.
    Candidate,
    /// Our engine is judged against the dump.
    Reference,
}

impl Role {
    /// Returns the role's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Role::Candidate => "candidate",
            Role::Reference => "reference",
        }
    }
}

/// The values with which a forward pass continues after each operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContinuationValues {
    /// The engine's own value. Errors accumulate as in normal use.
    Own,
    /// The dump's value, if recorded: each operation starts from the nearest recorded values.
    Held,
    /// The dump's value where a layer starts, and the engine's own value inside the layer. Errors accumulate
    /// to the layer's end.
    HeldBetweenLayers,
}

impl ContinuationValues {
    /// Returns true if the dump's value replaces the engine's. Other token taps are never replaced, since no
    /// operation reads them. Expert choices always come from the dump, since errors after a different choice
    /// mean nothing.
    pub fn replaces(self, point: Point) -> bool {
        match self {
            _ if point == Point::Experts => true,
            ContinuationValues::Own => false,
            ContinuationValues::Held => point.kind() == ValueKind::Real,
            ContinuationValues::HeldBetweenLayers => matches!(point, Point::Embed | Point::BlockOut),
        }
    }
}
