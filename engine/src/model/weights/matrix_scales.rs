//! Tensors that a file stores with a matrix: scales of its products and groups, scales and outlier thresholds of
//! its activations, and the weight values that some kernels use.

use super::Weights;
use crate::error::{Error, Result};
use crate::model::dequantisation::tensor_of_input_factors;
use crate::weight::{DType, InputCodes, InputScale, Matrix, StoredTensor};

impl Weights<'_> {
    /// Returns the scales by which the products of a GGUF tensor's `count` matrices are multiplied (`.scale`); empty if
    /// there are none. A `.scale` of another shape is a separate parameter. llama.cpp does not read the scales of
    /// activations (`.input_scale`).
    pub(super) fn scales(&mut self, name: &str, count: usize) -> Result<Vec<f32>> {
        let is_of_gguf = name.starts_with("blk.") || name == "output.weight";
        let Some(stem) = name.strip_suffix(".weight").filter(|_| is_of_gguf) else { return Ok(Vec::new()) };
        self.used.insert(format!("{stem}.input_scale"));
        let scale = format!("{stem}.scale");
        let stored = self.file.get(&scale).filter(|stored| stored.shape == [count]);
        let Some(&StoredTensor { dtype, .. }) = stored else { return Ok(Vec::new()) };
        let scales = self.vector(&scale, count)?;
        match scales.iter().position(|scale| !scale.is_finite()) {
            None => Ok(scales),
            Some(block) => Err(self.bad_scale(&scale, dtype, block)),
        }
    }

    /// Attaches the values that kernels use in place of the decoded ones, if there are any.
    pub(super) fn with_values_of_kernels(&mut self, name: &str, mut matrix: Matrix) -> Result<Matrix> {
        let Some(module) = name.strip_suffix(".weight") else { return Ok(matrix) };
        for dtype in Matrix::TYPES_OF_KERNELS {
            let tensor = Matrix::tensor_of_kernels(module, dtype);
            if self.has(&tensor) {
                let values = self.fetch(&tensor, &[matrix.rows, matrix.cols])?;
                let unsupported = || self.unsupported(&tensor, values.dtype, "f32, f16 or bf16");
                matrix = matrix.with_values_of_kernels(values).ok_or_else(unsupported)?;
            }
        }
        Ok(matrix)
    }

    /// Returns the stored scale of a matrix's activations, if there is one.
    pub(super) fn input_scale(&mut self, name: &str) -> Result<Option<InputScale>> {
        let Some(module) = name.strip_suffix(".weight") else { return Ok(None) };
        for codes in InputCodes::ALL {
            let tensor = InputScale::tensor(module, codes);
            if self.has(&tensor) {
                let numbers = self.vector(&tensor, 2)?;
                let found = InputScale { codes, number: numbers[0], zero: numbers[1] };
                return match found.is_sound() {
                    true => Ok(Some(found)),
                    false => Err(self.bad_scale(&tensor, DType::F32, 0)),
                };
            }
        }
        Ok(None)
    }

    /// Returns the factors of a matrix's inputs, if there are any.
    pub(in crate::model) fn input_factors(&mut self, name: &str, cols: usize) -> Result<Option<Vec<f32>>> {
        let tensor = name.strip_suffix(".weight").map(tensor_of_input_factors);
        tensor.filter(|tensor| self.has(tensor)).map(|tensor| self.vector(&tensor, cols)).transpose()
    }

    /// Returns the scales of the FP8 cache that stores a matrix's products, if there are any.
    pub(in crate::model) fn cache_scales(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        let tensor = name.strip_suffix(".weight").map(Matrix::tensor_of_cache).unwrap_or_default();
        let Some(count) = self.file.get(&tensor).map(StoredTensor::elements) else { return Ok(None) };
        let scales = self.vector(&tensor, count)?;
        match scales.iter().position(|scale| !(scale.is_finite() && *scale > 0.0)) {
            None => Ok(Some(scales)),
            Some(block) => Err(self.bad_scale(&tensor, DType::F32, block)),
        }
    }

    /// Returns the threshold of outliers among a matrix's activations, if there is one.
    pub(super) fn outliers(&mut self, name: &str) -> Result<Option<f32>> {
        let tensor = name.strip_suffix(".weight").map(Matrix::tensor_of_outliers);
        tensor.filter(|tensor| self.has(tensor)).map(|tensor| self.factor(&tensor)).transpose()
    }

    /// Attaches the scales that are stored as a separate tensor.
    pub(super) fn with_scales(&mut self, name: &str, matrix: Matrix) -> Result<Matrix> {
        let scales = name.strip_suffix("weight").map_or_else(String::new, |stem| format!("{stem}scales"));
        let groups = self.file.get(&scales).map_or(0, |tensor| tensor.shape[tensor.shape.len() - 1]);
        let tensor = self.fetch(&scales, &[matrix.rows, groups])?;
        let unsupported =
            || self.unsupported(name, matrix.dtype, "a matrix with an f32 for each group of a row");
        matrix.clone().with_scales(tensor).ok_or_else(unsupported)
    }

    /// Returns an error about a matrix that has both a scale and a bias.
    pub(crate) fn scaled_bias(&self, tensor: &str, dtype: DType) -> Error {
        self.unsupported(tensor, dtype, "a feed-forward matrix with either a .scale or a bias, not both")
    }
}
