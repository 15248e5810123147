//! Scales of quantised activations that a file stores with its matrices.

use super::DType;

/// Scale of the 8-bit codes of a matrix's activations, stored with the matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputScale {
    /// Type of the codes: I8 or F8_E4M3.
    pub codes: DType,
    /// Distance between the values of neighbouring codes.
    pub step: f32,
    /// Code of zero.
    pub zero: f32,
}

impl InputScale {
    /// Types of codes.
    pub(crate) const CODES: [DType; 2] = [DType::I8, DType::F8_E4M3];

    /// Returns the name under which a decoded checkpoint has the step and the zero point of a module's activations.
    pub(crate) fn tensor(module: &str, codes: DType) -> String {
        format!("{module}.input_scale.{codes}")
    }

    /// Returns true if the step is a positive number, and the zero point is an 8-bit integer.
    pub(crate) fn is_sound(&self) -> bool {
        let has_step = self.step > 0.0 && self.step.is_finite();
        has_step && self.zero.fract() == 0.0 && (-128.0..=127.0).contains(&self.zero)
    }
}

#[cfg(test)]
mod tests {
    use super::{DType, InputScale};

    #[test]
    fn steps_are_positive_and_zero_points_are_integers_of_8_bits() {
        let is_sound = |step, zero| InputScale { codes: DType::I8, step, zero }.is_sound();
        assert!(is_sound(0.5, -128.0) && is_sound(f32::MIN_POSITIVE, 127.0));
        for (step, zero) in [
            (0.0, 0.0),
            (-0.5, 0.0),
            (f32::NAN, 0.0),
            (f32::INFINITY, 0.0),
            (0.5, 128.0),
            (0.5, 0.5),
            (0.5, f32::NAN),
        ] {
            assert!(!is_sound(step, zero), "{step}, {zero}");
        }
    }
}
