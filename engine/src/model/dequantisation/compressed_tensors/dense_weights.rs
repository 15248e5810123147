//! `int-quantized`, `float-quantized`, `naive-quantized` and `mxfp8-quantized`: one byte for each weight.

use crate::error::Result;
use crate::model::dequantisation::affine::ScaleGroup;
use crate::model::dequantisation::compressed_tensors::with_inputs;
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading, float4};
use crate::view::float8_values;
use crate::weight::DType;

/// Weights of one byte.
pub(super) struct DenseWeights {
    pub group: ScaleGroup,
    /// True if scales are powers of two, stored as exponents in bytes.
    pub has_exponents: bool,
}

impl WeightFormat for DenseWeights {
    fn tensors(&self) -> &'static [&'static str] {
        with_inputs!["weight_scale", "weight", "weight_zero_point"]
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[WeightReading::InverseScales, WeightReading::TransposedScales]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let types = [DType::I8, DType::F8_E4M3, DType::F8_E5M2];
        let (codes, [rows, cols]) = module.matrix("weight", &types)?;
        let grid = self.group.grid(rows, cols);
        let scales = match self.has_exponents {
            true => {
                let stored = module.shaped("weight_scale", &[DType::U8], &grid.shape())?;
                float4::powers(module, "weight_scale", stored)?
            }
            false => grid.scales(module, "weight_scale", FLOATS)?,
        };
        let zeros = match module.get("weight_zero_point") {
            Some(_) => Some(grid.scales(module, "weight_zero_point", &types)?),
            None => None,
        };
        let numbers: Vec<f32> = match codes.dtype {
            DType::I8 => (0..=u8::MAX).map(|byte| f32::from(byte as i8)).collect(),
            dtype => float8_values(dtype).iter().map(|&number| number as f32).collect(),
        };
        let codes: &[u8] = &codes.data;
        let value = move |row: usize, col: usize| {
            let at = grid.at(row, col);
            let scale = grid.scale(&scales, at, reading);
            let zero = zeros.as_ref().map_or(0.0, |zeros| zeros[at]);
            (numbers[usize::from(codes[row * cols + col])] - zero) * scale
        };
        Ok(WeightMatrix { dtype: DType::F32, rows, cols, value: Box::new(value) })
    }
}
