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
    /// 8-bit integers in groups, whose scales are computed from the values.
    Int8Groups,
    /// 8-bit floats in groups, whose scales are computed from the values.
    Float8Groups,
}

impl InputCodes {
    /// All formats.
    pub(crate) const ALL: [Self; 7] = [
        Self::Int8,
        Self::Float8,
        Self::Nvfp4,
        Self::Mxfp4,
        Self::Mxfp8,
        Self::Int8Groups,
        Self::Float8Groups,
    ];

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
            Self::Int8Groups => "i8_groups",
            Self::Float8Groups => "f8_e4m3_groups",
        }
    }
}

/// Codes of a matrix's activations, and what the file states about their scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputScale {
    /// Format of the codes.
    pub codes: InputCodes,
    /// `Int8` and `Float8`: distance between the values of neighbouring codes. `Nvfp4`: number that scales of groups are
    /// multiplied by before they are stored. `Int8Groups` and `Float8Groups`: number of values in a group, 0 for all
    /// values of a token. `Mxfp4` and `Mxfp8`: 1.
    pub number: f32,
    /// Zero point: the code that stands for zero.
    pub zero: f32,
}

impl InputScale {
    /// Returns the name under which a decoded checkpoint stores the step and the zero point of a module's activations.
    pub(crate) fn tensor(module: &str, codes: InputCodes) -> String {
        format!("{module}.input_scale.{}", codes.name())
    }

    /// Returns codes in groups of `len` values, 0 for all values of a token.
    pub(crate) fn of_groups(codes: InputCodes, len: usize) -> Self {
        Self { codes, number: len as f32, zero: 0.0 }
    }

    /// Returns true if the number is in the range of the format, and the zero point is an 8-bit integer.
    pub(crate) fn is_sound(&self) -> bool {
        let has_number = match self.codes {
            InputCodes::Int8Groups | InputCodes::Float8Groups => {
                self.number >= 0.0 && self.number.fract() == 0.0
            }
            _ => self.number > 0.0,
        };
        has_number
            && self.number.is_finite()
            && self.zero.fract() == 0.0
            && (-128.0..=127.0).contains(&self.zero)
    }
}
