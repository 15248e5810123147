//! Readings of a quantised weight's tensors: as the format specifies, or with one convention of another tool.

/// A reading of the tensors of a quantised weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightReading {
    /// The reading that the format states.
    Stated,
    /// Zero points are increased by 1.
    ZeroAbove,
    /// Zero points are decreased by 1.
    ZeroBelow,
    /// The codes in a word or byte are read in another order.
    OtherOrder,
    /// Inverse scales.
    InverseScales,
    /// The scale of the whole matrix is read as its inverse.
    InverseGlobalScale,
    /// The two axes of the scales are swapped.
    TransposedScales,
    /// Inputs are assigned to groups in order, ignoring `g_idx`.
    WithoutIndices,
}

impl WeightReading {
    /// Returns the fault of a file whose weights fit the original under this reading.
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

    /// Returns the number that is added to each zero point.
    pub(super) fn zero(self) -> f32 {
        match self {
            WeightReading::ZeroAbove => 1.0,
            WeightReading::ZeroBelow => -1.0,
            _ => 0.0,
        }
    }

    /// Returns the index of a code; neighbouring codes are swapped under the other order.
    pub(super) fn index(self, at: usize) -> usize {
        if self == WeightReading::OtherOrder { at ^ 1 } else { at }
    }
}
