//! Precision of an operation's input values.

use crate::checkpoint::Site;
use crate::compare::compared_dump::ComparedDump;
use crate::exact;
use crate::measure::{coarser, half_step};
use crate::tensor::Tensor;
use crate::view::View;
use crate::weight::DType;

/// The precision of a stored value that a run continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputPrecision {
    /// The value that the dump's engine computed with.
    Given,
    /// More digits than runs here have.
    Double,
    /// All that round to them in the type in which they are stored.
    Stored(DType),
    /// The dump's engine went on with them, in a type in which products with a scale may be rounded.
    Scaled(DType),
}

impl InputPrecision {
    /// Returns the meaning for a dump whose operations round to `computed`.
    pub fn of(held: &ComparedDump, site: Site, computed: DType) -> Self {
        let Some(dtype) = held.stored(site) else { return InputPrecision::Given };
        match coarser(dtype, computed) {
            Some(_) if held.goes_on_with(site) && computed == DType::F32 => InputPrecision::Given,
            Some(_) if held.goes_on_with(site) => InputPrecision::Scaled(computed),
            Some(stored) => InputPrecision::Stored(stored),
            None if dtype == DType::F64 => InputPrecision::Double,
            None => InputPrecision::Given,
        }
    }

    /// Returns true if only the stored value itself is meant.
    pub fn is_exact(self) -> bool {
        matches!(self, InputPrecision::Given | InputPrecision::Double)
    }

    /// Returns the largest distance between a value stored with a scale and the engine's own value.
    pub fn radius(self, value: f64, scale: f64) -> f64 {
        match self {
            InputPrecision::Given | InputPrecision::Double => 0.0,
            InputPrecision::Stored(dtype) => half_step(Some(dtype), value, scale),
            InputPrecision::Scaled(dtype) => half_step(Some(dtype), value, 1.0),
        }
    }

    /// Makes a tensor near the dump's values that knows the meaning of each value.
    pub fn about(self, tensor: Tensor, dumped: &View) -> Tensor {
        if self == InputPrecision::Given {
            return tensor;
        }
        let (values, scales) = (dumped.to_vec(), dumped.scales().map(View::to_vec));
        let scale = |flat: usize| scales.as_ref().map_or(1.0, |scales| scales[flat]);
        // What runs here go on with is an f32: at the edge, up to half a step of that beyond it.
        let beyond = |value: f64| half_step(Some(DType::F32), value, 1.0);
        exact::within(tensor, |flat| {
            (values[flat], self.radius(values[flat], scale(flat)) + beyond(values[flat]))
        })
    }
}
