//! NVFP4 and MXFP4: 4-bit floats (E2M1) in groups of 16 and 32 inputs, as compressed-tensors and Model Optimizer store
//! them.

use crate::error::Result;
use crate::model::dequantisation::affine::{ScaleGrid, ScaleGroup};
use crate::model::dequantisation::float4::{self, e2m1};
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::weight::DType;

/// Format of weights in 4-bit floats (E2M1) with group scales: NVFP4 or MXFP4.
pub(super) struct Float4Weights {
    pub(crate) group: ScaleGroup,
    pub(crate) tensors: Float4Tensors,
    /// NVFP4: the scales of groups are 8-bit floats, multiplied by a scale of the whole matrix. `None` for MXFP4, whose
    /// scales are powers of two.
    pub(crate) global: Option<GlobalScale>,
}

/// Names of the tensors of a weight, after the module's name.
#[derive(Clone, Copy)]
pub(super) struct Float4Tensors {
    /// Name of the tensor with the codes.
    pub(crate) codes: &'static str,
    /// Names of all tensors of a quantised module, including tensors that are not read. The first name exists in every
    /// quantised module and in no other module.
    pub(crate) all: &'static [&'static str],
}

/// Scale of a whole matrix. The string is the tensor's name after the module's name.
#[derive(Clone, Copy)]
pub(super) enum GlobalScale {
    /// The scales of groups are divided by this scale.
    Divides(&'static str),
    /// The scales of groups are multiplied by this scale.
    Multiplies(&'static str),
}

/// Name of the tensor with the group scales.
const SCALES: &str = "weight_scale";

impl WeightFormat for Float4Weights {
    fn tensors(&self) -> &'static [&'static str] {
        self.tensors.all
    }

    fn has_few_bits(&self) -> bool {
        true
    }

    fn readings(&self) -> &'static [WeightReading] {
        match self.global.is_some() {
            true => &[WeightReading::InverseGlobalScale, WeightReading::OtherOrder],
            false => &[WeightReading::OtherOrder],
        }
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let (codes, [rows, bytes]) = module.matrix(self.tensors.codes, &[DType::U8])?;
        let cols = bytes.saturating_mul(2);
        let grid = self.group.grid(rows, cols);
        let scales = self.scales(module, &grid, reading)?;
        let codes: &[u8] = &codes.data;
        // Model Optimizer has no negative zero: 0 is added, which leaves other values as they are.
        let none = if matches!(self.global, Some(GlobalScale::Multiplies(_))) { 0.0 } else { -0.0 };
        let value = move |row: usize, col: usize| {
            e2m1(codes, reading.index(row * cols + col)) * scales[grid.at(row, col)] + none
        };
        let dtype = if self.global.is_some() { DType::F32 } else { DType::BF16 };
        Ok(WeightMatrix::new(dtype, [rows, cols], value))
    }
}

impl Float4Weights {
    /// Returns the factor of every group.
    fn scales(&self, module: &ModuleTensors, grid: &ScaleGrid, reading: WeightReading) -> Result<Vec<f32>> {
        let Some(global) = self.global else {
            let stored = module.shaped(SCALES, &[DType::U8], &grid.shape())?;
            return float4::powers(module, SCALES, stored);
        };
        let types = [&[DType::F8_E4M3], FLOATS].concat();
        let mut scales = module.numbers(SCALES, &types, &grid.shape())?;
        let (GlobalScale::Divides(name) | GlobalScale::Multiplies(name)) = global;
        let number = module.number(name, FLOATS)?;
        if number == 0.0 {
            let problem =
                format!("'{}' is 0, expected another number; the file is damaged", module.name(name));
            return Err(module.bad(problem));
        }
        let divides = matches!(global, GlobalScale::Divides(_));
        let is_inverse = reading == WeightReading::InverseGlobalScale;
        let number = if is_inverse { 1.0 / number } else { number };
        scales.iter_mut().for_each(|scale| if divides { *scale /= number } else { *scale *= number });
        Ok(scales)
    }
}
