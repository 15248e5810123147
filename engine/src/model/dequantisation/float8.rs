//! Weights of 8-bit floats: transformers' `fp8` with a scale for each block, and AutoFP8 with one for each matrix.

use crate::error::Result;
use crate::model::dequantisation::affine::ScaleGroup;
use crate::model::dequantisation::float4;
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::view::float8_values;
use crate::weight::DType;

/// 8-bit types.
pub(super) const TYPES: &[DType] = &[DType::F8_E4M3, DType::F8_E5M2];

/// Weights of 8-bit floats.
pub(super) struct Float8Weights {
    /// Name of the scales, and of the other tensors.
    pub(crate) tensors: &'static [&'static str],
    pub(crate) group: ScaleGroup,
    /// True if scales are powers of two, stored as exponents in bytes.
    pub(crate) has_exponents: bool,
}

/// Tensors of transformers' `fp8`.
pub(super) const FINE_GRAINED: &[&str] = &["weight_scale_inv", "weight", "activation_scale"];

/// Tensors of AutoFP8.
pub(super) const AUTO_FP8: &[&str] = &["weight_scale", "weight", "input_scale"];

impl WeightFormat for Float8Weights {
    fn tensors(&self) -> &'static [&'static str] {
        self.tensors
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[WeightReading::InverseScales, WeightReading::TransposedScales]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let (codes, [rows, cols]) = module.matrix("weight", TYPES)?;
        let grid = self.group.grid(rows, cols);
        let scales = match self.has_exponents {
            true => {
                let stored = module.shaped(self.tensors[0], &[DType::U8], &grid.shape())?;
                float4::powers(module, self.tensors[0], stored)?
            }
            false => grid.scales(module, self.tensors[0], FLOATS)?,
        };
        let (numbers, codes): (_, &[u8]) = (float8_values(codes.dtype), &codes.data);
        let value = move |row: usize, col: usize| {
            let scale = grid.scale(&scales, grid.at(row, col), reading);
            numbers[usize::from(codes[row * cols + col])] as f32 * scale
        };
        Ok(WeightMatrix::new(DType::F32, [rows, cols], value))
    }
}
