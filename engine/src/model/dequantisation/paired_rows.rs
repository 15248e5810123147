//! Model Optimizer's 4-bit integers: a byte contains the codes of two neighbouring outputs, the first in the low
//! bits.
//!
//! For `W4A8_AWQ`, a weight is a code times its group's scale. The library rounds the weight to an 8-bit float with
//! one scale for the matrix. TensorRT-LLM's kernels do not round it: they multiply the code by the quotient of both
//! scales in f16. TensorRT-LLM's kernels for `W4A16_AWQ` round the scales to the model's type.

use crate::error::Result;
use crate::model::dequantisation::affine::ScaleGroup;
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::weight_matrix::{ElementDecoder, round_to};
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::quant::round_to_small_float;
use crate::weight::DType;

/// Name of the scale of the 8-bit floats to which `W4A8_AWQ` rounds weights.
const FLOAT8_SCALE: &str = "weight_scale_2";

/// Signed integers of 4 bits, packed along the outputs.
pub(super) struct PairedRows {
    pub(crate) group: ScaleGroup,
    /// Type of the unquantised weights of the model.
    pub(crate) dtype: DType,
    /// True if decoded integers are rounded to 8-bit floats, with one scale for the matrix.
    pub(crate) has_float8: bool,
}

/// Largest 8-bit float.
const LARGEST: f32 = 448.0;

/// Rounds a decoded integer to an 8-bit float, with the library's operations. `factor` is the inverse of the matrix's
/// scale.
fn float8(dtype: DType, value: f32, factor: f32) -> f32 {
    let code = round_to_small_float(round_to(dtype, value) * factor, 3, -6, LARGEST);
    round_to(dtype, code * (1.0 / factor))
}

impl WeightFormat for PairedRows {
    fn tensors(&self) -> &'static [&'static str] {
        match self.has_float8 {
            false => &["weight_scale", "weight"],
            true => &["weight_scale", "weight", FLOAT8_SCALE, "input_scale"],
        }
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
        let decoder = move |scales: Vec<f32>| {
            move |row: usize, col: usize| {
                let byte = codes[row / 2 * cols + col];
                let bits = byte >> (4 * (reading.index(row) % 2)) & 15;
                // The highest bit is the sign.
                let code = (bits << 4) as i8 >> 4;
                f32::from(code) * grid.scale(&scales, grid.at(row, col), reading)
            }
        };
        let dtype = self.dtype;
        if !self.has_float8 {
            let short: Vec<f32> = scales.iter().map(|&scale| round_to(dtype, scale)).collect();
            let of_kernels = (short != scales).then(|| {
                let value = decoder(short);
                Box::new(move |row: usize, col: usize| round_to(dtype, value(row, col))) as ElementDecoder
            });
            let made = WeightMatrix::new(DType::F32, [rows, cols], decoder(scales));
            return Ok(made.with_kernels(of_kernels));
        }
        let scale = module.number(FLOAT8_SCALE, FLOATS)?;
        let factor = LARGEST / (scale * LARGEST);
        if !(factor > 0.0 && factor.is_finite()) {
            let name = module.name(FLOAT8_SCALE);
            return Err(module.bad(format!("'{name}' is {scale}, expected more than 0; the file is damaged")));
        }
        let quotient = |&number: &f32| round_to(DType::F16, round_to(DType::F16, number) / scale) * scale;
        let of_kernels: ElementDecoder = Box::new(decoder(scales.iter().map(quotient).collect()));
        let whole = decoder(scales);
        let value = move |row: usize, col: usize| float8(dtype, whole(row, col), factor);
        Ok(WeightMatrix::new(dtype, [rows, cols], value).with_kernels(Some(of_kernels)))
    }
}
