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
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Role::Candidate => "candidate",
            Role::Reference => "reference",
        }
    }
}

/// The values with which the forward pass continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContinuationValues {
    /// The engine's own value: errors travel on, as they do in use.
    Own,
    /// The dump's value, if recorded: each operation starts from the nearest recorded values.
    Held,
    /// The dump's value where a layer starts, the engine's inside it: errors travel on to the layer's end.
    HeldBetweenLayers,
}

impl ContinuationValues {
    /// Returns true if the dump's value replaces the engine's. Tokens are only judged, since nothing reads
    /// them. Expert choices always come from the dump: after a different choice, errors mean nothing.
    pub fn replaces(self, point: Point) -> bool {
        match self {
            _ if point == Point::Experts => true,
            ContinuationValues::Own => false,
            ContinuationValues::Held => point.kind() == ValueKind::Real,
            ContinuationValues::HeldBetweenLayers => matches!(point, Point::Embed | Point::BlockOut),
        }
    }
}
