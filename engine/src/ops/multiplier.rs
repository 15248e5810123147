//! Numbers that values are multiplied with, as an architecture's authors write them.

/// A factor, and what it is rounded to where activations are of a short type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Multiplier {
    /// An element of a tensor, of the type of the activations: Gemma's of embeddings.
    Element(f32),
    /// A number of the program, `f32` whatever the activations are.
    Number(f32),
    /// A number of the program that values are divided by.
    Divisor(f32),
}

impl Multiplier {
    /// Returns the total factor.
    pub fn factor(self) -> f32 {
        match self {
            Multiplier::Element(factor) | Multiplier::Number(factor) => factor,
            Multiplier::Divisor(divisor) => 1.0 / divisor,
        }
    }

    /// Returns a multiplier of this kind with another total factor.
    pub fn with(self, factor: f32) -> Self {
        match self {
            Multiplier::Element(_) => Multiplier::Element(factor),
            Multiplier::Number(_) => Multiplier::Number(factor),
            Multiplier::Divisor(_) => Multiplier::Divisor(1.0 / factor),
        }
    }

    /// `x` with it, in `f32`.
    pub fn of(self, x: f32) -> f32 {
        match self {
            Multiplier::Element(factor) | Multiplier::Number(factor) => x * factor,
            Multiplier::Divisor(divisor) => x / divisor,
        }
    }
}
