//! Grids of scales: the part of a matrix in which all codes share a scale.

use crate::error::Result;
use crate::model::dequantisation::WeightReading;
use crate::model::dequantisation::module_tensors::ModuleTensors;
use crate::weight::DType;

/// Part of a matrix that shares a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleGroup {
    /// The whole matrix.
    Tensor,
    /// One output.
    Channel,
    /// A number of neighbouring inputs of one output.
    Inputs(usize),
    /// Blocks of this many outputs and inputs. The last blocks may be smaller.
    Block([usize; 2]),
}

/// Grid of scales over a matrix.
#[derive(Clone, Copy)]
pub(super) struct ScaleGrid {
    shape: [usize; 2],
    block: [usize; 2],
}

impl ScaleGroup {
    /// Returns the name for notes.
    pub(crate) fn name(self) -> String {
        match self {
            ScaleGroup::Tensor => "one scale".to_owned(),
            ScaleGroup::Channel => "one scale per output".to_owned(),
            ScaleGroup::Inputs(inputs) => format!("groups of {inputs}"),
            ScaleGroup::Block([rows, cols]) => format!("blocks of {rows} x {cols}"),
        }
    }

    /// Returns the grid for a matrix of `rows` outputs and `cols` inputs; both and the group are not empty.
    pub(crate) fn grid(self, rows: usize, cols: usize) -> ScaleGrid {
        let block = match self {
            ScaleGroup::Tensor => [rows, cols],
            ScaleGroup::Channel => [1, cols],
            ScaleGroup::Inputs(inputs) => [1, inputs],
            ScaleGroup::Block(block) => block,
        };
        ScaleGrid { shape: [rows.div_ceil(block[0]), cols.div_ceil(block[1])], block }
    }
}

impl ScaleGrid {
    /// Returns the number of scales along outputs and inputs.
    pub(crate) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Returns the index of the scale of an element.
    pub(crate) fn at(&self, row: usize, col: usize) -> usize {
        row / self.block[0] * self.shape[1] + col / self.block[1]
    }

    /// Returns the scale at an index, under a reading of the tensors.
    pub(crate) fn scale(&self, scales: &[f32], at: usize, reading: WeightReading) -> f32 {
        let [rows, cols] = self.shape;
        match reading {
            WeightReading::InverseScales => 1.0 / scales[at],
            // The stored array has the axes of the grid, but is filled along the other one.
            WeightReading::TransposedScales => scales[at % cols * rows + at / cols],
            _ => scales[at],
        }
    }

    /// Returns the scales of a tensor. Axes of length 1 may be missing or added.
    ///
    /// # Errors
    /// If the tensor is missing, has another type or shape, or contains infinity or NaN.
    pub(crate) fn scales(&self, module: &ModuleTensors, tensor: &str, types: &[DType]) -> Result<Vec<f32>> {
        let stored = module.require(tensor, types)?;
        let is_long = |&&length: &&usize| length != 1;
        match stored.shape.iter().filter(is_long).eq(self.shape.iter().filter(is_long)) {
            true => module.finite(tensor, stored),
            false => module.numbers(tensor, types, &self.shape),
        }
    }
}
