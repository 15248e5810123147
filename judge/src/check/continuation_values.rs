//! Precision of an operation's input values.

use crate::align::AlignedDump;
use crate::checkpoint::{Point, Site, ValueKind};
use crate::exact;
use crate::measure::{ColumnSelection, coarser, half_step, nearest_within};
use crate::tensor::Tensor;
use crate::view::View;
use crate::weight::DType;

/// The precision of a recorded value that a run continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputPrecision {
    /// The value with which the dump's engine computed.
    Given,
    /// An f64 value, more precise than the f32 values of our runs.
    Double,
    /// Any value that rounds to the recorded one in the stored type.
    Stored(DType),
    /// The dump's engine continued with the stored 8-bit value. Its product with the scale may be rounded to
    /// this type.
    Scaled(DType),
}

impl InputPrecision {
    /// Returns the precision of a site in a dump whose operations round to `computed`.
    pub(crate) fn of(held: &AlignedDump, site: Site, computed: DType) -> Self {
        let Some(dtype) = held.stored(site) else { return InputPrecision::Given };
        match coarser(dtype, computed) {
            Some(_) if held.goes_on_with(site) && computed == DType::F32 => InputPrecision::Given,
            Some(_) if held.goes_on_with(site) => InputPrecision::Scaled(computed),
            Some(stored) => InputPrecision::Stored(stored),
            None if dtype == DType::F64 => InputPrecision::Double,
            None => InputPrecision::Given,
        }
    }

    /// Returns true if the engine's value equals the recorded one exactly.
    pub(crate) fn is_exact(self) -> bool {
        matches!(self, InputPrecision::Given | InputPrecision::Double)
    }

    /// Returns the largest distance between a value stored with a scale and the engine's own value.
    pub(crate) fn radius(self, value: f64, scale: f64) -> f64 {
        match self {
            InputPrecision::Given | InputPrecision::Double => 0.0,
            InputPrecision::Stored(dtype) => half_step(Some(dtype), value, scale),
            InputPrecision::Scaled(dtype) => half_step(Some(dtype), value, 1.0),
        }
    }

    /// Returns the values with which a run continues. A visible entry is the dump's value. If the dump stores it
    /// rounded, the entry is the value nearest to our engine's that rounds to it. Hidden entries come from our engine,
    /// since the dump may contain anything there.
    pub(crate) fn nearest(
        self,
        own: &View,
        dumped: &View,
        columns: impl Fn(usize) -> ColumnSelection + Sync,
    ) -> Tensor {
        let width = dumped.width();
        let near = Tensor::from_rows(dumped.rows(), width, |row, out| {
            let seen = columns(row).range(width);
            if seen != (0..width) || !self.is_exact() {
                own.read_rounded(row, 0..width, out);
            }
            if self.is_exact() {
                return dumped.read_rounded(row, seen.clone(), &mut out[seen]);
            }
            let (mut theirs, mut ours, mut scales) = (vec![0.0; width], vec![0.0; width], vec![1.0; width]);
            dumped.read(row, 0..width, &mut theirs);
            own.read(row, 0..width, &mut ours);
            if let Some(of_dump) = dumped.scales() {
                of_dump.read(row, 0..width, &mut scales);
            }
            for column in seen {
                let half = self.radius(theirs[column], scales[column]);
                out[column] = nearest_within(half, theirs[column], ours[column]) as f32;
            }
        });
        near.reshaped(dumped.shape())
    }

    /// Makes a tensor of the dump's values in which each value has its precision.
    pub(crate) fn about(self, tensor: Tensor, dumped: &View) -> Tensor {
        if self == InputPrecision::Given {
            return tensor;
        }
        let (values, scales) = (dumped.to_vec(), dumped.scales().map(View::to_vec));
        let scale = |flat: usize| scales.as_ref().map_or(1.0, |scales| scales[flat]);
        // Our runs continue with f32 values, which adds up to half an f32 step.
        let beyond = |value: f64| half_step(Some(DType::F32), value, 1.0);
        exact::within(tensor, |flat| {
            (values[flat], self.radius(values[flat], scale(flat)) + beyond(values[flat]))
        })
    }
}

/// The values with which a forward pass continues after each operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContinuationValues {
    /// The engine's own value. Errors accumulate as in normal use.
    Own,
    /// The dump's value, if recorded: each operation starts from the nearest recorded values.
    Held,
    /// The dump's value where a layer starts, and the engine's own value inside the layer. Errors accumulate
    /// to the layer's end.
    HeldBetweenLayers,
}

impl ContinuationValues {
    /// Returns true if the dump's value replaces the engine's. Expert choices always come from the dump, since errors
    /// after a different choice mean nothing. Token choices never do, since no operation reads them.
    pub(crate) fn replaces(self, point: Point) -> bool {
        match self {
            _ if point == Point::Experts => true,
            ContinuationValues::Own => false,
            ContinuationValues::Held => point.kind() == ValueKind::Real,
            ContinuationValues::HeldBetweenLayers => point.is_before_layers() || point == Point::BlockOut,
        }
    }
}
