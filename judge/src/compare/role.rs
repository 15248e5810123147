//! Who is compared with whom, and what a run along a dump goes on with.

use crate::checkpoint::{Kind, Point};

/// What a dump is in a comparison with our engine, which is the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The dump is judged, our engine says what is right.
    Candidate,
    /// Our engine is judged, the dump says what is right.
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

/// What the forward pass goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continue {
    /// The engine's own value: errors travel on, as they do in use.
    Own,
    /// The dump's value, wherever it holds one: each stage starts from the nearest values that the dump holds.
    Held,
    /// The dump's value where a layer starts, the engine's inside it: errors travel on to the layer's end.
    HeldBetweenLayers,
}

impl Continue {
    /// Whether the dump's value takes the place of the engine's. A token is what is judged, and nothing reads it; what follows a
    /// choice of experts starts from that of the dump: behind another one, errors are no measure of anything.
    pub fn replaces(self, point: Point) -> bool {
        match self {
            _ if point == Point::Experts => true,
            Continue::Own => false,
            Continue::Held => point.kind() == Kind::Real,
            Continue::HeldBetweenLayers => matches!(point, Point::Embed | Point::BlockOut),
        }
    }
}
