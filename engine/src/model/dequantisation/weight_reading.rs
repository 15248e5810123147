//! Readings of a quantised weight's tensors: as the format says, and with one convention of another tool.

/// A reading of the tensors of a quantised weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightReading {
    /// The reading that the format states.
    Stated,
    /// Zero points increased by 1.
    ZeroAbove,
    /// Zero points decreased by 1.
    ZeroBelow,
    /// Codes in another order in their words or bytes.
    OtherOrder,
    /// Inverse scales.
    InverseScales,
    /// Inverse scale of the whole matrix.
    InverseGlobalScale,
    /// Scales whose two axes are exchanged.
    TransposedScales,
    /// Inputs in their order, not in the groups of `g_idx`.
    WithoutIndices,
}

impl WeightReading {
    /// Returns the fault of a file whose weights fit the original in this reading.
    pub fn fault(self) -> &'static str {
        match self {
            WeightReading::Stated => "none",
            WeightReading::ZeroAbove => "stored zero points are too small by 1",
            WeightReading::ZeroBelow => "stored zero points are too large by 1",
            WeightReading::OtherOrder => "codes are packed in another order than the format says",
            WeightReading::InverseScales => "scales are inverted",
            WeightReading::InverseGlobalScale => "the scale of the whole matrix is inverted",
            WeightReading::TransposedScales => "scales are transposed",
            WeightReading::WithoutIndices => "g_idx is stored, but weights are not in its order",
        }
    }

    /// Returns the change of zero points.
    pub(super) fn zero(self) -> f32 {
        match self {
            WeightReading::ZeroAbove => 1.0,
            WeightReading::ZeroBelow => -1.0,
            _ => 0.0,
        }
    }

    /// Returns the index of a code, with neighbours exchanged in the other order.
    pub(super) fn index(self, at: usize) -> usize {
        if self == WeightReading::OtherOrder { at ^ 1 } else { at }
    }
}
