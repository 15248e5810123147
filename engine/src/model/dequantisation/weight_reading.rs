//! Readings of a quantised weight's tensors: as the format says, and with one convention of another tool.

/// A reading of the tensors of a quantised weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightReading {
    /// The reading that the format states.
    Stated,
    /// With zero points that are larger by 1.
    ZeroAbove,
    /// With zero points that are smaller by 1.
    ZeroBelow,
    /// With codes in another order in their words or bytes.
    OtherOrder,
    /// With inverse scales.
    InverseScales,
    /// With the inverse scale of the whole matrix.
    InverseGlobalScale,
    /// With scales whose two axes are exchanged.
    TransposedScales,
    /// Without the groups of `g_idx`: inputs in their order.
    WithoutIndices,
}

impl WeightReading {
    /// Returns the fault of a file whose weights fit the original in this reading.
    pub fn fault(self) -> &'static str {
        match self {
            WeightReading::Stated => "none",
            WeightReading::ZeroAbove => "zero points are smaller by 1 than the format says",
            WeightReading::ZeroBelow => "zero points are larger by 1 than the format says",
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
