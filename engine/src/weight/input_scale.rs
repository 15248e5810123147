//! Scales of quantised activations that a file stores with its matrices.

use super::DType;

/// Codes of a matrix's activations, and their scale, as the file states them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputScale {
    /// Type of the codes: I8, F8_E4M3, NVFP4 or MXFP4.
    pub codes: DType,
    /// Distance between the values of neighbouring codes. NVFP4: number that scales of groups are multiplied by before
    /// they are stored. MXFP4: 1.
    pub step: f32,
    /// Code of zero.
    pub zero: f32,
}

impl InputScale {
    /// Types of codes.
    pub(crate) const CODES: [DType; 4] = [DType::I8, DType::F8_E4M3, DType::NVFP4, DType::MXFP4];

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
