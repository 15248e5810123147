//! MLX: codes of 2 to 8 bits along the inputs, with a scale and a bias for each group.

use crate::error::Result;
use crate::model::dequantisation::affine::ScaleGroup;
use crate::model::dequantisation::codes::{PackedCodes, words_for};
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::weight_matrix::round_to;
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::weight::DType;

/// Key of MLX's settings in `config.json`.
pub(super) const KEY: &str = "quantization";

/// Codes of MLX's affine mode.
pub(super) struct Mlx {
    pub(crate) bits: usize,
    /// Number of inputs that share a scale.
    pub(crate) group: usize,
}

impl WeightFormat for Mlx {
    fn tensors(&self) -> &'static [&'static str] {
        &["scales", "weight", "biases"]
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[WeightReading::ZeroAbove, WeightReading::ZeroBelow]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let (codes, [rows, words]) = module.matrix("weight", &[DType::U32])?;
        let cols = words.saturating_mul(32) / self.bits;
        if words_for(cols, self.bits) != Some(words) || !cols.is_multiple_of(self.group) {
            let problem = format!(
                "rows of {words} words are not {}-bit codes in groups of {}; do bits and group_size match the weights?",
                self.bits, self.group
            );
            return Err(module.bad(problem));
        }
        let grid = ScaleGroup::Inputs(self.group).grid(rows, cols);
        let scales = grid.scales(module, "scales", FLOATS)?;
        let biases = grid.scales(module, "biases", FLOATS)?;
        let dtype = module.require("scales", FLOATS)?.dtype;
        let codes = PackedCodes::along_rows(&codes.data, words, self.bits);
        let value = move |row: usize, col: usize| {
            let at = grid.at(row, col);
            round_to(
                dtype,
                round_to(dtype, (codes.get(row, col) as f32 - reading.zero()) * scales[at]) + biases[at],
            )
        };
        Ok(WeightMatrix::new(dtype, [rows, cols], value))
    }
}
