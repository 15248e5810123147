//! `nvfp4-pack-quantized` and `mxfp4-pack-quantized`: numbers of 4 bits in groups of 16 and 32 inputs.

use crate::error::Result;
use crate::model::dequantisation::affine::{ScaleGrid, ScaleGroup};
use crate::model::dequantisation::compressed_tensors::with_inputs;
use crate::model::dequantisation::float4::{self, e2m1};
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::weight::DType;

/// Numbers of 4 bits.
pub(super) struct Float4Weights {
    pub(crate) group: ScaleGroup,
    /// True for NVFP4: scales are 8-bit floats, divided by a scale of the whole matrix. False for MXFP4: scales are
    /// powers of two.
    pub(crate) has_global_scale: bool,
}

impl WeightFormat for Float4Weights {
    fn tensors(&self) -> &'static [&'static str] {
        with_inputs!["weight_packed", "weight_scale", "weight_global_scale"]
    }

    fn has_few_bits(&self) -> bool {
        true
    }

    fn readings(&self) -> &'static [WeightReading] {
        match self.has_global_scale {
            true => &[WeightReading::InverseGlobalScale, WeightReading::OtherOrder],
            false => &[WeightReading::OtherOrder],
        }
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let (codes, [rows, bytes]) = module.matrix("weight_packed", &[DType::U8])?;
        let cols = bytes.saturating_mul(2);
        let grid = self.group.grid(rows, cols);
        let scales = self.scales(module, &grid, reading)?;
        let codes: &[u8] = &codes.data;
        let value = move |row: usize, col: usize| {
            e2m1(codes, reading.index(row * cols + col)) * scales[grid.at(row, col)]
        };
        let dtype = if self.has_global_scale { DType::F32 } else { DType::BF16 };
        Ok(WeightMatrix::new(dtype, [rows, cols], value))
    }
}

impl Float4Weights {
    /// Returns the factor of every group.
    fn scales(&self, module: &ModuleTensors, grid: &ScaleGrid, reading: WeightReading) -> Result<Vec<f32>> {
        if !self.has_global_scale {
            let stored = module.shaped("weight_scale", &[DType::U8], &grid.shape())?;
            return float4::powers(module, "weight_scale", stored);
        }
        let types = [&[DType::F8_E4M3], FLOATS].concat();
        let mut scales = module.numbers("weight_scale", &types, &grid.shape())?;
        let global = module.number("weight_global_scale", FLOATS)?;
        if global == 0.0 {
            let name = module.name("weight_global_scale");
            return Err(
                module.bad(format!("'{name}' is 0, but weights are divided by it; the file is damaged"))
            );
        }
        let divisor = if reading == WeightReading::InverseGlobalScale { 1.0 / global } else { global };
        scales.iter_mut().for_each(|scale| *scale /= divisor);
        Ok(scales)
    }
}
