//! Fetching weights by name: shape checked at the point of fetching, and nothing left over.

use std::collections::HashSet;
use std::path::Path;
use std::thread;

use crate::error::{Error, ModelError, Result};
use crate::format::TensorFile;
use crate::lazy_bytes::{self, LazyBytes, UnavailableBytes};
use crate::model::quantisation;
use crate::parallel;
use crate::quant::{self, decode_row, ternary};
use crate::weight::{DType, Factor, Matrix, StoredTensor};

/// Types that ternary weights of a Hugging Face checkpoint may have.
const TERNARY: &str = "u8 (four rows of codes packed into one, so a multiple of 4 rows), or f32, f16, bf16";

/// A weight file being read for one architecture.
pub struct Weights<'f> {
    file: &'f TensorFile,
    architecture: &'static str,
    used: HashSet<String>,
}

impl<'f> Weights<'f> {
    /// Starts reading; nothing is used yet.
    pub fn new(file: &'f TensorFile, architecture: &'static str) -> Self {
        // Vectors are read when the model is; of a file elsewhere all of them come in one go. If not, who reads one says so.
        _ = lazy_bytes::bring(
            file.iter().filter(|(_, tensor)| tensor.shape.len() < 2).map(|(_, tensor)| &tensor.data),
        );
        Self { file, architecture, used: HashSet::new() }
    }

    /// The file, for messages.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// A vector of `len` plain elements, as `f32`.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a block type.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let tensor = self.fetch(name, &[len])?;
        if !matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(self.unsupported(name, tensor.dtype, "f32, f16, bf16"));
        }
        let mut values = vec![0.0; len];
        decode_row(tensor.dtype, &tensor.data, &mut values);
        Ok(values)
    }

    /// A single plain element that is a number.
    ///
    /// # Errors
    /// As [`Weights::vector`]; if it is infinite or NaN.
    pub fn factor(&mut self, name: &str) -> Result<f32> {
        let factor = self.vector(name, 1)?[0];
        match factor.is_finite() {
            true => Ok(factor),
            false => {
                Err(self.bad_scale(name, self.file.get(name).map_or(DType::F32, |tensor| tensor.dtype), 0))
            }
        }
    }

    /// A matrix of `rows` outputs and `cols` inputs, left as it is stored.
    ///
    /// # Errors
    /// If it is missing, of another shape, its rows end inside a block, or a scale is not a number.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let tensor = self.fetch(name, &[rows, cols])?;
        self.sound(name, tensor)
    }

    /// Matrices of one size behind each other in one tensor of three axes.
    ///
    /// # Errors
    /// As [`Weights::matrix`]; if they have a scale in common.
    pub fn stacked(&mut self, name: &str, count: usize, rows: usize, cols: usize) -> Result<Vec<Matrix>> {
        let tensor = self.fetch(name, &[count, rows, cols])?;
        if tensor.dtype.tail_bytes() > 0 || tensor.dtype == DType::INT8_GROUPS {
            return Err(self.unsupported(name, tensor.dtype, "a type with its scales in its blocks"));
        }
        let all = self.sound(name, &StoredTensor { shape: vec![count * rows, cols], ..tensor.clone() })?;
        Ok((0..count).map(|expert| all.rows_from(expert * rows, rows)).collect())
    }

    /// A tensor of two axes as a matrix.
    fn sound(&mut self, name: &str, tensor: &StoredTensor) -> Result<Matrix> {
        let matrix = Matrix::from_stored(tensor)
            .ok_or_else(|| self.unsupported(name, tensor.dtype, "a type whose blocks divide a row"))?;
        let matrix = match matrix.dtype {
            DType::INT8_GROUPS => self.with_scales(name, matrix)?,
            _ => matrix,
        };
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

    /// A matrix of ternary codes as transformers packs them, four rows in one; or one that is stored as it is.
    ///
    /// # Errors
    /// As [`Weights::matrix`]; if a code stands for nothing.
    pub fn maybe_packed(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        if self.file.get(name).is_none_or(|tensor| tensor.dtype != DType::U8) {
            return self.matrix(name, rows, cols);
        }
        let packed = self.fetch(name, &[rows.div_ceil(4), cols])?;
        if let Some(offset) = quantisation::first_bad_code(packed) {
            let (file, dtype) = (self.file.path().into(), packed.dtype);
            return Err(ModelError::BadCode { file, tensor: name.to_owned(), dtype, offset }.into());
        }
        let matrix = if rows.is_multiple_of(4) { quantisation::unpacked(packed, rows, cols) } else { None };
        matrix.ok_or_else(|| self.unsupported(name, packed.dtype, TERNARY))
    }

    /// Master weights, quantised to ternary ones, and the factor of all of them.
    ///
    /// # Errors
    /// As [`Weights::matrix`]; if they are of no plain type.
    pub fn quantised(&mut self, name: &str, rows: usize, cols: usize) -> Result<(Matrix, Factor)> {
        let masters = self.matrix(name, rows, cols)?;
        let plain = matches!(masters.dtype, DType::F32 | DType::F16 | DType::BF16);
        let quantised = if plain { quantisation::quantised(&masters) } else { None };
        quantised.ok_or_else(|| self.unsupported(name, masters.dtype, TERNARY))
    }

    /// A matrix whose scales are a tensor of their own.
    fn with_scales(&mut self, name: &str, matrix: Matrix) -> Result<Matrix> {
        let scales = name.strip_suffix("weight").map_or_else(String::new, |stem| format!("{stem}scales"));
        let groups = self.file.get(&scales).map_or(0, |tensor| tensor.shape[tensor.shape.len() - 1]);
        let tensor = self.fetch(&scales, &[matrix.rows, groups])?;
        let unsupported =
            || self.unsupported(name, matrix.dtype, "a matrix with an f32 for each group of a row");
        matrix.clone().with_scales(tensor).ok_or_else(unsupported)
    }

    /// A matrix that the file holds the other way round: `cols` inputs × `rows` outputs, plain elements. It is copied.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a block type.
    pub fn transposed(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let tensor = self.fetch(name, &[cols, rows])?;
        Matrix::transposed(tensor).ok_or_else(|| {
            self.unsupported(name, tensor.dtype, "a plain type, since the tensor is transposed")
        })
    }

    /// Returns true if the file has a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.file.get(name).is_some()
    }

    /// A matrix that is `other` under a second name: files may hold it again, but no other one.
    ///
    /// # Errors
    /// [`ModelError::NotTied`] if they differ: references disagree on which of the two counts.
    pub fn tied(&mut self, name: &str, other: &Matrix) -> Result<Matrix> {
        if self.has(name) && self.matrix(name, other.rows, other.cols)? != *other {
            return Err(ModelError::NotTied { file: self.file.path().into(), tensor: name.to_owned() }.into());
        }
        Ok(other.clone())
    }

    /// Makes sure that the forward pass uses all there is, but for what is rightly `beside` it.
    ///
    /// # Errors
    /// [`ModelError::UnusedTensors`] if it does not: it would judge another model than the file holds.
    pub fn finish(self, beside: impl Fn(&str) -> bool) -> Result<()> {
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

    /// A ternary matrix whose codes all stand for weights, and whose scale is a number.
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

/// The place where it is said that weights are needed now: those that are elsewhere are brought, all at once, and looked at
/// as the others were when they were fetched. `part` is what they are of, for messages.
pub fn arrive(part: impl Fn() -> String, matrices: &[(&str, &Matrix)]) {
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
            lazy_bytes::refuse(UnavailableBytes { place: format!("{name} of {}", part()), problem });
        }
    }
}

/// Begins to bring the weights of layers that are elsewhere, one after the other, while somebody computes. What cannot be
/// had is for those to tell who need it.
pub fn expect<'m>(layers: impl Iterator<Item = Vec<(&'static str, &'m Matrix)>>) {
    let elsewhere = |(_, matrix): &(&str, &Matrix)| matrix.is_elsewhere();
    let parts = |(_, matrix): (&str, &'m Matrix)| matrix.parts().cloned();
    let layers: Vec<Vec<LazyBytes>> =
        layers.map(|layer| layer.into_iter().filter(elsewhere).flat_map(parts).collect()).collect();
    if layers.iter().any(|parts| !parts.is_empty()) {
        let bring = move || _ = layers.iter().try_for_each(lazy_bytes::bring);
        _ = thread::Builder::new().name("ahead".to_owned()).spawn(bring);
    }
}

/// Downloads and checks the rows of these tokens.
pub fn arrive_rows(table: &Matrix, tokens: &[u32]) {
    let rows: Vec<_> = tokens.iter().flat_map(|&token| table.parts_of_row(token as usize)).collect();
    lazy_bytes::bring(&rows).unwrap_or_else(|why| lazy_bytes::refuse(why));
}

/// Returns the first block with a bad scale. This reads all scales at the speed of memory; for an uncached file it
/// reads ahead what the first pass needs.
fn first_unsound_block(matrix: &Matrix) -> Option<usize> {
    if matrix.dtype == DType::INT8_GROUPS {
        return quant::llama2c::first_unsound(matrix.scale_range(0..matrix.rows));
    }
    let blocks_per_row = matrix.cols / matrix.dtype.block_len();
    parallel::first(matrix.rows, blocks_per_row, |row| {
        Some(row * blocks_per_row + quant::first_unsound_block(matrix.dtype, matrix.row(row))?)
    })
}
