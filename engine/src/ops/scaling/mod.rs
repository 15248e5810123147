//! Scaling: `x · c` or `x / c`, elementwise, with a constant factor as an architecture's authors write it.
//!
//! `faults` covers the factors of layers. Faults in other factors belong to the operation whose result is scaled.

pub(crate) mod exact;
pub(crate) mod faults;

/// A factor, and how it is rounded if activations have a short type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Multiplier {
    /// A tensor element, which is rounded to the activation type, such as Gemma's factor of embeddings.
    Element(f32),
    /// A constant of the program, always `f32`.
    Number(f32),
    /// A constant divisor of the program, always `f32`.
    Divisor(f32),
}

impl Multiplier {
    /// Returns the total factor.
    pub(crate) fn factor(self) -> f32 {
        match self {
            Multiplier::Element(factor) | Multiplier::Number(factor) => factor,
            Multiplier::Divisor(divisor) => 1.0 / divisor,
        }
    }

    /// Returns a multiplier of this kind with another total factor.
    pub(crate) fn with(self, factor: f32) -> Self {
        match self {
            Multiplier::Element(_) => Multiplier::Element(factor),
            Multiplier::Number(_) => Multiplier::Number(factor),
            Multiplier::Divisor(_) => Multiplier::Divisor(1.0 / factor),
        }
    }

    /// Applies the multiplier to `x`, in `f32`.
    pub(crate) fn of(self, x: f32) -> f32 {
        match self {
            Multiplier::Element(factor) | Multiplier::Number(factor) => x * factor,
            Multiplier::Divisor(divisor) => x / divisor,
        }
    }
}
