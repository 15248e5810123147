//! `pack-quantized`: integers of 1 to 8 bits along the inputs, in 32-bit words.

use crate::error::Result;
use crate::model::dequantisation::affine::{ScaleGrid, ScaleGroup};
use crate::model::dequantisation::codes::{PackedCodes, words_for};
use crate::model::dequantisation::compressed_tensors::with_inputs;
use crate::model::dequantisation::gptq::group_indices;
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::weight::{DType, StoredTensor};

/// Packed integers.
pub(super) struct PackedWeights {
    pub(crate) bits: usize,
    pub(crate) group: ScaleGroup,
    pub(crate) is_symmetric: bool,
}

impl WeightFormat for PackedWeights {
    fn tensors(&self) -> &'static [&'static str] {
        with_inputs!["weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"]
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[WeightReading::ZeroAbove, WeightReading::ZeroBelow, WeightReading::OtherOrder]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let (codes, [lines, words]) = module.matrix("weight_packed", &[DType::I32])?;
        let [rows, cols] = shape(module)?;
        if rows != lines || words_for(cols, self.bits) != Some(words) {
            let problem = format!(
                "it holds {lines} x {words} words of {}-bit codes, but weight_shape is {rows} x {cols}; does \
                 num_bits match the weights?",
                self.bits
            );
            return Err(module.bad(problem));
        }
        let grid = self.group.grid(rows, cols);
        let scales = grid.scales(module, "weight_scale", FLOATS)?;
        let zeros = self.zeros(module, &grid)?;
        let group_of = self.groups(module, cols, grid.shape()[1])?;
        if group_of.is_some() && grid.shape()[0] != rows {
            return Err(
                module.bad("weight_g_idx needs scales for groups of inputs (strategy: group)".to_owned())
            );
        }
        let codes = PackedCodes::along_rows(&codes.data, words, self.bits);
        let offset = 1 << (self.bits - 1);
        let value = move |row: usize, col: usize| {
            let at = match &group_of {
                Some(group_of) => row * grid.shape()[1] + group_of[col],
                None => grid.at(row, col),
            };
            let zero = zeros.as_ref().map_or(offset, |zeros| zeros[at]);
            let code = codes.get(row, reading.index(col).min(cols - 1)) as i32;
            ((code - zero) as f32 - reading.zero()) * scales[at]
        };
        Ok(WeightMatrix::new(DType::F32, [rows, cols], value))
    }
}

impl PackedWeights {
    /// Returns the zero points of an asymmetric weight, plus the offset of packed codes. They are packed along the
    /// outputs.
    fn zeros(&self, module: &ModuleTensors, grid: &ScaleGrid) -> Result<Option<Vec<i32>>> {
        const ZEROS: &str = "weight_zero_point";
        if self.is_symmetric {
            return match module.get(ZEROS) {
                None => Ok(None),
                Some(zeros) if zeros.data.iter().all(|&byte| byte == 0) => Ok(None),
                Some(_) => Err(module.bad(format!(
                    "'{}' is not zero, but the configuration says symmetric: true",
                    module.name(ZEROS)
                ))),
            };
        }
        let [rows, groups] = grid.shape();
        let words = words_for(rows, self.bits).unwrap_or(0);
        let stored = module.shaped(ZEROS, &[DType::I32], &[words, groups])?;
        let zeros = PackedCodes::along_columns(&stored.data, groups, self.bits);
        let all = (0..rows).flat_map(|row| (0..groups).map(move |group| (row, group)));
        Ok(Some(all.map(|(row, group)| zeros.get(group, row) as i32).collect()))
    }

    /// Returns the group of every input, if inputs are assigned to groups by activation order. -1 marks a tensor that
    /// is not used.
    fn groups(&self, module: &ModuleTensors, cols: usize, groups: usize) -> Result<Option<Vec<usize>>> {
        const INDICES: &str = "weight_g_idx";
        let Some(stored) = module.get(INDICES) else { return Ok(None) };
        let is_unused = |stored: &StoredTensor| {
            stored.dtype == DType::I32 && stored.data.as_chunks::<4>().0.contains(&(-1i32).to_le_bytes())
        };
        if is_unused(stored) {
            return Ok(None);
        }
        group_indices(module, INDICES, cols, groups).map(Some)
    }
}

/// Returns `weight_shape`.
fn shape(module: &ModuleTensors) -> Result<[usize; 2]> {
    const SHAPE: &str = "weight_shape";
    let stored = module.shaped(SHAPE, &[DType::I64, DType::I32], &[2])?;
    let numbers: Vec<Option<usize>> = match stored.dtype {
        DType::I64 => {
            let numbers = stored.data.as_chunks::<8>().0.iter();
            numbers.map(|bytes| usize::try_from(i64::from_le_bytes(*bytes)).ok()).collect()
        }
        _ => {
            let numbers = stored.data.as_chunks::<4>().0.iter();
            numbers.map(|bytes| usize::try_from(i32::from_le_bytes(*bytes)).ok()).collect()
        }
    };
    match numbers.as_slice() {
        &[Some(rows), Some(cols)] if rows > 0 && cols > 0 => Ok([rows, cols]),
        _ => Err(module.bad(format!("'{}' is not two positive sizes", module.name(SHAPE)))),
    }
}
