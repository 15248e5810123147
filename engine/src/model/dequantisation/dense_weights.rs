//! One byte for each weight: `int-quantized`, `float-quantized`, `naive-quantized` and `mxfp8-quantized` of
//! compressed-tensors, and torchao's weights.

use crate::error::Result;
use crate::model::dequantisation::affine::ScaleGroup;
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading, float4};
use crate::view::float8_values;
use crate::weight::DType;

/// Format of weights with one byte per element: 8-bit integers or floats.
pub(super) struct DenseWeights {
    /// Names of the tensors.
    pub(crate) tensors: DenseTensors,
    pub(crate) group: ScaleGroup,
    /// True if scales are powers of two, stored as exponents in bytes.
    pub(crate) has_exponents: bool,
}

/// Names of the tensors of a weight, after the module's name.
#[derive(Clone, Copy)]
pub(super) struct DenseTensors {
    pub(crate) scale: &'static str,
    pub(crate) weight: &'static str,
    pub(crate) zero_point: &'static str,
    /// Names of all tensors of a quantised module, including tensors that are not read. The first is the name of the
    /// scales.
    pub(crate) all: &'static [&'static str],
}

impl WeightFormat for DenseWeights {
    fn tensors(&self) -> &'static [&'static str] {
        self.tensors.all
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[WeightReading::InverseScales, WeightReading::TransposedScales]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let DenseTensors { scale, weight, zero_point, .. } = self.tensors;
        let types = [DType::I8, DType::F8_E4M3, DType::F8_E5M2];
        let (codes, [rows, cols]) = module.matrix(weight, &types)?;
        let grid = self.group.grid(rows, cols);
        let scales = match self.has_exponents {
            true => {
                let stored = module.shaped(scale, &[DType::U8], &grid.shape())?;
                float4::powers(module, scale, stored)?
            }
            false => grid.scales(module, scale, FLOATS)?,
        };
        let zeros = match module.get(zero_point) {
            Some(_) => Some(grid.scales(module, zero_point, &types)?),
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
        Ok(WeightMatrix::new(DType::F32, [rows, cols], value))
    }
}
