//! Loads weights by name, checks their shapes, and checks that no tensor stays unused.

mod matrix_scales;

use std::collections::HashSet;
use std::fmt::Arguments;
use std::path::Path;
use std::thread;

use crate::error::{Error, ModelError, Result};
use crate::format::TensorFile;
use crate::lazy_bytes::{self, LazyBytes, UnavailableBytes};
use crate::model::quantisation;
use crate::parallel;
use crate::quant::{self, decode_row, ternary};
use crate::weight::{DType, Factor, Matrix, StoredTensor};

/// Valid types for ternary weights of a Hugging Face checkpoint.
const TERNARY: &str = "u8 (four rows of codes packed into one, so a multiple of 4 rows), or f32, f16, bf16";

/// A weight file that is read for one architecture. Records which tensors were used.
pub(crate) struct Weights<'f> {
    file: &'f TensorFile,
    architecture: &'static str,
    used: HashSet<String>,
}

impl<'f> Weights<'f> {
    /// Starts reading; no tensor counts as used yet.
    pub(crate) fn new(file: &'f TensorFile, architecture: &'static str) -> Self {
        // Vectors are read at load time, so a remote file's vectors are downloaded in one request. Errors are reported
        // when a vector is read.
        _ = lazy_bytes::bring(
            file.iter().filter(|(_, tensor)| tensor.shape.len() < 2).map(|(_, tensor)| &tensor.data),
        );
        Self { file, architecture, used: HashSet::new() }
    }

    /// Returns the file's path, for messages.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Loads a vector of `len` plain elements as `f32`.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a block type.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.plain(name, &[len])
    }

    /// Loads all elements of a tensor of this shape, of a plain type, as `f32`.
    ///
    /// # Errors
    /// See [`Weights::vector`].
    pub(crate) fn plain(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let tensor = self.fetch(name, shape)?;
        self.decoded(name, tensor, shape.iter().product())
    }

    /// Loads all elements of a tensor that has one of these shapes; see [`Weights::plain`].
    ///
    /// # Errors
    /// See [`Weights::vector`].
    pub(crate) fn plain_of(&mut self, name: &str, shapes: &[&[usize]]) -> Result<Vec<f32>> {
        let stored = self.file.get(name).map(|tensor| tensor.shape.as_slice());
        let shape = shapes.iter().find(|shape| Some(**shape) == stored).unwrap_or(&shapes[0]);
        self.plain(name, shape)
    }

    /// Loads a vector of `len` plain elements that may be stored as a matrix of one row.
    ///
    /// # Errors
    /// See [`Weights::vector`].
    pub(crate) fn flat_vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.plain_of(name, &[&[len], &[1, len]])
    }

    fn decoded(&self, name: &str, tensor: &StoredTensor, len: usize) -> Result<Vec<f32>> {
        if !matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(self.unsupported(name, tensor.dtype, "f32, f16, bf16"));
        }
        let mut values = vec![0.0; len];
        decode_row(tensor.dtype, &tensor.data, &mut values);
        Ok(values)
    }

    /// Loads a single finite number.
    ///
    /// # Errors
    /// See [`Weights::vector`]; also if the number is infinite or NaN.
    pub(crate) fn factor(&mut self, name: &str) -> Result<f32> {
        let factor = self.vector(name, 1)?[0];
        match factor.is_finite() {
            true => Ok(factor),
            false => {
                Err(self.bad_scale(name, self.file.get(name).map_or(DType::F32, |tensor| tensor.dtype), 0))
            }
        }
    }

    /// Loads a matrix of `rows` outputs and `cols` inputs in its stored encoding.
    ///
    /// # Errors
    /// If it is missing, has another shape, its rows end inside a block, or a scale is not a number.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let matrix = self.unscaled(name, rows, cols)?;
        Ok(match self.scales(name, 1)?.as_slice() {
            &[scale] => matrix.with_scale(scale),
            _ => matrix,
        })
    }

    /// Loads a matrix without a separate scale; see [`Weights::matrix`].
    ///
    /// # Errors
    /// See [`Weights::matrix`].
    pub(crate) fn unscaled(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let tensor = self.fetch(name, &[rows, cols])?;
        self.sound(name, tensor)
    }

    /// Loads a vector as a matrix of one row.
    ///
    /// # Errors
    /// See [`Weights::matrix`].
    pub(crate) fn row(&mut self, name: &str, cols: usize) -> Result<Matrix> {
        let tensor = self.fetch(name, &[cols])?;
        self.sound(name, &StoredTensor { shape: vec![1, cols], ..tensor.clone() })
    }

    /// Loads matrices of equal size that are stacked in one three-dimensional tensor.
    ///
    /// # Errors
    /// See [`Weights::matrix`]; also if all matrices share one scale.
    pub(crate) fn stacked(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<Matrix>> {
        let tensor = self.fetch(name, &[count, rows, cols])?;
        if tensor.dtype.tail_bytes() > 0 || tensor.dtype == DType::INT8_GROUPS {
            return Err(self.unsupported(
                name,
                tensor.dtype,
                "a plain type, or a type whose blocks contain all scales, such as q8_0",
            ));
        }
        let all = self.sound(name, &StoredTensor { shape: vec![count * rows, cols], ..tensor.clone() })?;
        let scales = self.scales(name, count)?;
        let matrix = |expert: usize| {
            let scale = scales.get(expert).copied().unwrap_or(1.0);
            all.rows_from(expert * rows, rows).with_scale(scale)
        };
        Ok((0..count).map(matrix).collect())
    }

    /// Creates a matrix from a two-dimensional tensor and checks its scales.
    fn sound(&mut self, name: &str, tensor: &StoredTensor) -> Result<Matrix> {
        let matrix = Matrix::from_stored(tensor)
            .ok_or_else(|| self.unsupported(name, tensor.dtype, "a type whose blocks divide a row"))?;
        let matrix = match matrix.dtype {
            DType::INT8_GROUPS => self.with_scales(name, matrix)?,
            _ => matrix,
        };
        let (input_scale, outliers) = (self.input_scale(name)?, self.outliers(name)?);
        let cache_scales = self.cache_scales(name)?;
        let matrix =
            matrix.with_input_scale(input_scale).with_outliers(outliers).with_cache_scales(cache_scales);
        let matrix = self.with_values_of_kernels(name, matrix)?;
        if matrix.is_elsewhere() {
            return Ok(matrix); // `arrive` looks at it
        }
        if ternary::is_ternary(matrix.dtype) {
            return self.sound_ternary(name, matrix);
        }
        let unsound = first_unsound_block(&matrix);
        matrix.release();
        match unsound {
            None => Ok(matrix),
            Some(block) => Err(self.bad_scale(name, tensor.dtype, block)),
        }
    }

    /// Loads a matrix of ternary codes packed by transformers (four rows in one), or a matrix in its stored encoding.
    ///
    /// # Errors
    /// See [`Weights::matrix`]; also if a code is invalid.
    pub(crate) fn maybe_packed(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        if self.file.get(name).is_none_or(|tensor| tensor.dtype != DType::U8) {
            return self.unscaled(name, rows, cols);
        }
        let packed = self.fetch(name, &[rows.div_ceil(4), cols])?;
        if let Some(offset) = quantisation::first_bad_code(packed) {
            let (file, dtype) = (self.file.path().into(), packed.dtype);
            return Err(ModelError::BadCode { file, tensor: name.to_owned(), dtype, offset }.into());
        }
        let matrix = if rows.is_multiple_of(4) { quantisation::unpacked(packed, rows, cols) } else { None };
        matrix.ok_or_else(|| self.unsupported(name, packed.dtype, TERNARY))
    }

    /// Loads master weights and quantises them to ternary weights with one factor.
    ///
    /// # Errors
    /// See [`Weights::matrix`]; also if the type is not plain.
    pub(crate) fn quantised(&mut self, name: &str, rows: usize, cols: usize) -> Result<(Matrix, Factor)> {
        let masters = self.matrix(name, rows, cols)?;
        let plain = matches!(masters.dtype, DType::F32 | DType::F16 | DType::BF16);
        let quantised = if plain { quantisation::quantised(&masters) } else { None };
        quantised.ok_or_else(|| self.unsupported(name, masters.dtype, TERNARY))
    }

    /// Loads and transposes a copy of a matrix that is stored as `cols` inputs × `rows` outputs, in a plain type.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a block type.
    pub(crate) fn transposed(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let tensor = self.fetch(name, &[cols, rows])?;
        Matrix::transposed(tensor).ok_or_else(|| {
            self.unsupported(name, tensor.dtype, "a plain type, since the tensor is transposed")
        })
    }

    /// Loads a matrix of shape `size` from the elements of a tensor of another shape. `from` returns the index of an
    /// element in the tensor.
    ///
    /// # Errors
    /// See [`Weights::transposed`].
    pub(crate) fn gathered(
        &mut self,
        name: &str,
        shape: &[usize],
        size: [usize; 2],
        from: impl Fn(usize, usize) -> usize,
    ) -> Result<Matrix> {
        let tensor = self.fetch(name, shape)?;
        Matrix::of_elements(tensor, size, from).ok_or_else(|| {
            self.unsupported(name, tensor.dtype, "a plain type, since the tensor has another layout")
        })
    }

    /// Returns true if the file has a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.get(name).is_some()
    }

    /// Returns `other` for a matrix that is tied to it. The file may also store the tied matrix itself, with the same
    /// values.
    ///
    /// # Errors
    /// [`ModelError::NotTied`] if the values differ: references disagree on which matrix is used.
    pub(crate) fn tied(&mut self, name: &str, other: &Matrix) -> Result<Matrix> {
        if self.has(name) && self.matrix(name, other.rows, other.cols)? != *other {
            return Err(ModelError::NotTied { file: self.file.path().into(), tensor: name.to_owned() }.into());
        }
        Ok(other.clone())
    }

    /// Checks that every tensor was used, except those for which `beside` returns true.
    ///
    /// # Errors
    /// [`ModelError::UnusedTensors`] if a tensor is unused: the forward pass would judge another model than the file's.
    pub(crate) fn finish(self, beside: impl Fn(&str) -> bool) -> Result<()> {
        let names = self.file.iter().map(|(name, _)| name);
        let unused = names.filter(|name| !self.used.contains(*name) && !beside(name));
        let tensors: Vec<String> = unused.map(str::to_owned).collect();
        if tensors.is_empty() {
            return Ok(());
        }
        Err(Error::Model(ModelError::UnusedTensors {
            file: self.file.path().into(),
            tensors,
            architecture: self.architecture,
        }))
    }

    fn fetch(&mut self, name: &str, expected: &[usize]) -> Result<&'f StoredTensor> {
        let (file, tensor) = (self.file.path(), name.to_owned());
        let missing = || ModelError::MissingTensor {
            file: file.into(),
            tensor: tensor.clone(),
            architecture: self.architecture,
        };
        let stored = self.file.get(name).ok_or_else(missing)?;
        if stored.shape != expected {
            let (found, expected) = (stored.shape.clone(), expected.to_vec());
            return Err(ModelError::WrongShape { file: file.into(), tensor, found, expected }.into());
        }
        self.used.insert(tensor);
        Ok(stored)
    }

    /// Checks that all codes of a ternary matrix are valid and that its scale is a number.
    fn sound_ternary(&self, name: &str, matrix: Matrix) -> Result<Matrix> {
        let row_bytes = matrix.row(0).len();
        if let Some(offset) = first_bad_code(&matrix) {
            let (file, dtype) = (self.file.path().into(), matrix.dtype);
            return Err(ModelError::BadCode { file, tensor: name.to_owned(), dtype, offset }.into());
        }
        match matrix.scale().is_finite() {
            true => Ok(matrix),
            false => {
                Err(self.bad_scale(name, matrix.dtype, matrix.rows * row_bytes / matrix.dtype.block_bytes()))
            }
        }
    }

    fn bad_scale(&self, tensor: &str, dtype: DType, block: usize) -> Error {
        let width = if dtype == DType::INT8_GROUPS { size_of::<f32>() } else { dtype.block_bytes() };
        let (file, offset) = (self.file.path().into(), block * width);
        ModelError::BadScale { file, tensor: tensor.to_owned(), dtype, block, offset }.into()
    }

    fn unsupported(&self, tensor: &str, dtype: DType, supported: &str) -> Error {
        let (file, tensor, supported) = (self.file.path().into(), tensor.to_owned(), supported.to_owned());
        ModelError::UnsupportedTensorType { file, tensor, dtype, supported }.into()
    }
}

/// Returns the offset of the first invalid code.
fn first_bad_code(matrix: &Matrix) -> Option<usize> {
    let row_bytes = matrix.row(0).len();
    parallel::first(matrix.rows, row_bytes, |row| {
        Some(row * row_bytes + ternary::first_bad_code(matrix.row(row))?)
    })
}

/// Downloads the remote matrices that are needed now, all at once, and checks them like local ones. Messages call
/// them `part`.
pub(crate) fn arrive(part: Arguments, matrices: &[(&str, &Matrix)]) {
    let elsewhere = || matrices.iter().filter(|(_, matrix)| matrix.is_elsewhere());
    lazy_bytes::bring(elsewhere().flat_map(|(_, matrix)| matrix.parts()))
        .unwrap_or_else(|why| lazy_bytes::refuse(why));
    for (name, matrix) in elsewhere() {
        let flaw = match ternary::is_ternary(matrix.dtype) {
            true if !matrix.scale().is_finite() => Some("its scale is not a finite number".to_owned()),
            true => first_bad_code(matrix).map(|offset| format!("the code at byte {offset} is invalid")),
            false => first_unsound_block(matrix)
                .map(|block| format!("a scale of block {block} is not a finite number")),
        };
        if let Some(flaw) = flaw {
            let problem = format!("{flaw} ({}); the file is damaged", matrix.dtype);
            lazy_bytes::refuse(UnavailableBytes { place: format!("{name} of {part}"), problem });
        }
    }
}

/// Starts downloading the remote weights of some layers in the background, one layer after the other. Errors are
/// reported when the weights are needed.
pub(crate) fn expect<'m>(layers: impl Iterator<Item = Vec<(&'static str, &'m Matrix)>>) {
    let elsewhere = |(_, matrix): &(&str, &Matrix)| matrix.is_elsewhere();
    let parts = |(_, matrix): (&str, &'m Matrix)| matrix.parts().cloned();
    let layers: Vec<Vec<LazyBytes>> =
        layers.map(|layer| layer.into_iter().filter(elsewhere).flat_map(parts).collect()).collect();
    if layers.iter().any(|parts| !parts.is_empty()) {
        let bring = move || _ = layers.iter().try_for_each(lazy_bytes::bring);
        _ = thread::Builder::new().name("ahead".to_owned()).spawn(bring);
    }
}

/// Downloads and checks the embedding rows of these tokens.
pub(crate) fn arrive_rows(table: &Matrix, tokens: &[u32]) {
    let rows: Vec<_> = tokens.iter().flat_map(|&token| table.parts_of_row(token as usize)).collect();
    lazy_bytes::bring(&rows).unwrap_or_else(|why| lazy_bytes::refuse(why));
}

/// Returns the first block with an infinite or NaN scale. Reads all scales at memory speed; for an uncached file this
/// also reads ahead for the first pass.
fn first_unsound_block(matrix: &Matrix) -> Option<usize> {
    if matrix.dtype == DType::INT8_GROUPS {
        return quant::llama2c::first_unsound(matrix.scale_range(0..matrix.rows));
    }
    let blocks_per_row = matrix.cols / matrix.dtype.block_len();
    parallel::first(matrix.rows, blocks_per_row, |row| {
        Some(row * blocks_per_row + quant::first_unsound_block(matrix.dtype, matrix.row(row))?)
    })
}
