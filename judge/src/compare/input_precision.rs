//! Precision of an operation's input values.

use crate::checkpoint::Site;
use crate::compare::compared_dump::ComparedDump;
use crate::exact;
use crate::measure::{coarser, half_step};
use crate::tensor::Tensor;
use crate::view::View;
use crate::weight::DType;

/// The precision of a recorded value that a run continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputPrecision {
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

    /// Returns true if the engine's value equals the recorded one exactly.
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

    /// Makes a tensor of the dump's values in which each value has its precision.
    pub fn about(self, tensor: Tensor, dumped: &View) -> Tensor {
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
