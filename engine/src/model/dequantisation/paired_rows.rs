//! Model Optimizer's 4-bit integers: a byte has the codes of two neighbouring outputs, the first in the low bits.

use crate::error::Result;
use crate::model::dequantisation::affine::ScaleGroup;
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::weight::DType;

/// Signed integers of 4 bits, packed along the outputs.
pub(super) struct PairedRows {
    pub(crate) group: ScaleGroup,
}

impl WeightFormat for PairedRows {
    fn tensors(&self) -> &'static [&'static str] {
        &["weight_scale", "weight"]
    }

    fn has_few_bits(&self) -> bool {
        true
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[WeightReading::OtherOrder, WeightReading::InverseScales, WeightReading::TransposedScales]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let (codes, [pairs, cols]) = module.matrix("weight", &[DType::U8])?;
        let rows = pairs.saturating_mul(2);
        let grid = self.group.grid(rows, cols);
        let scales = grid.scales(module, "weight_scale", FLOATS)?;
        let codes: &[u8] = &codes.data;
        let value = move |row: usize, col: usize| {
            let byte = codes[row / 2 * cols + col];
            let bits = byte >> (4 * (reading.index(row) % 2)) & 15;
            // The highest bit is the sign.
            let code = (bits << 4) as i8 >> 4;
            f32::from(code) * grid.scale(&scales, grid.at(row, col), reading)
        };
        Ok(WeightMatrix::new(DType::F32, [rows, cols], value))
    }
}
