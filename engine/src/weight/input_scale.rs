//! Scales of quantised activations that a file stores with its matrices.

/// Format of a matrix's activations, as the file states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputCodes {
    /// 8-bit integers with one stored scale.
    Int8,
    /// 8-bit floats with one stored scale.
    Float8,
    /// 4-bit floats in groups of 16, whose scales are relative to a stored number.
    Nvfp4,
    /// 4-bit floats in groups of 32, whose scales are powers of two.
    Mxfp4,
    /// 8-bit floats in groups of 32, whose scales are powers of two.
    Mxfp8,
}

impl InputCodes {
    /// All formats.
    pub(crate) const ALL: [Self; 5] = [Self::Int8, Self::Float8, Self::Nvfp4, Self::Mxfp4, Self::Mxfp8];

    /// Returns true if the scales of groups are powers of two.
    pub(crate) fn has_powers(self) -> bool {
        matches!(self, Self::Mxfp4 | Self::Mxfp8)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Int8 => "i8",
            Self::Float8 => "f8_e4m3",
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
        }
    }
}

/// Codes of a matrix's activations, and their scale, as the file states them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputScale {
    /// Format of the codes.
    pub codes: InputCodes,
    /// Distance between the values of neighbouring codes. NVFP4: number that scales of groups are multiplied by before
    /// they are stored. MXFP4 and MXFP8: 1.
    pub step: f32,
    /// Code of zero.
    pub zero: f32,
}

impl InputScale {
    /// Returns the name under which a decoded checkpoint has the step and the zero point of a module's activations.
    pub(crate) fn tensor(module: &str, codes: InputCodes) -> String {
        format!("{module}.input_scale.{}", codes.name())
    }

    /// Returns true if the step is a positive number, and the zero point is an 8-bit integer.
    pub(crate) fn is_sound(&self) -> bool {
        let has_step = self.step > 0.0 && self.step.is_finite();
        has_step && self.zero.fract() == 0.0 && (-128.0..=127.0).contains(&self.zero)
    }
}
