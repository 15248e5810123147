//! The tensors of one quantised module, with checks of their types and shapes.

use crate::error::{Error, ModelError, Result};
use crate::format::TensorFile;
use crate::view::View;
use crate::weight::{DType, StoredTensor};

/// Types of scales.
pub(super) const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// The tensors of one module of a file.
#[derive(Clone, Copy)]
pub(super) struct ModuleTensors<'f> {
    pub(crate) file: &'f TensorFile,
    pub(crate) module: &'f str,
    pub(crate) joint: char,
    /// Name of the tensor that error messages refer to, after the module's name.
    pub(crate) main: &'static str,
}

impl<'f> ModuleTensors<'f> {
    /// Returns a tensor of the module, if it exists.
    pub(crate) fn get(&self, tensor: &str) -> Option<&'f StoredTensor> {
        self.file.get(&self.name(tensor))
    }

    /// Returns a tensor of one of these types, of any shape.
    pub(crate) fn require(&self, tensor: &str, types: &[DType]) -> Result<&'f StoredTensor> {
        let stored = self
            .get(tensor)
            .ok_or_else(|| self.bad(format!("'{}' is missing; get the file again", self.name(tensor))))?;
        if types.contains(&stored.dtype) {
            return Ok(stored);
        }
        let known: Vec<_> = types.iter().map(|dtype| dtype.name()).collect();
        Err(ModelError::UnsupportedTensorType {
            file: self.file.path().into(),
            tensor: self.name(tensor),
            dtype: stored.dtype,
            supported: known.join(", "),
        }
        .into())
    }

    pub(crate) fn shaped(&self, tensor: &str, types: &[DType], shape: &[usize]) -> Result<&'f StoredTensor> {
        let stored = self.require(tensor, types)?;
        if stored.shape == shape {
            return Ok(stored);
        }
        let (file, tensor) = (self.file.path().into(), self.name(tensor));
        Err(ModelError::WrongShape { file, tensor, found: stored.shape.clone(), expected: shape.to_vec() }
            .into())
    }

    /// Returns the rows and columns of a tensor of one of these types.
    pub(crate) fn matrix(&self, tensor: &str, types: &[DType]) -> Result<(&'f StoredTensor, [usize; 2])> {
        let stored = self.require(tensor, types)?;
        match stored.shape.as_slice() {
            &[rows, cols] if rows > 0 && cols > 0 => Ok((stored, [rows, cols])),
            shape => Err(self.bad(format!("'{}' has shape {shape:?}, expected a matrix", self.name(tensor)))),
        }
    }

    /// Returns the values of a tensor of one of these types with this shape.
    ///
    /// # Errors
    /// If it is missing, has another type or shape, or contains infinity or NaN.
    pub(crate) fn numbers(&self, tensor: &str, types: &[DType], shape: &[usize]) -> Result<Vec<f32>> {
        let stored = self.shaped(tensor, types, shape)?;
        self.finite(tensor, stored)
    }

    /// Returns the only value of a tensor.
    pub(crate) fn number(&self, tensor: &str, types: &[DType]) -> Result<f32> {
        let stored = self.require(tensor, types)?;
        match stored.elements() {
            1 => Ok(self.finite(tensor, stored)?[0]),
            count => Err(self.bad(format!("'{}' has {count} values, expected 1", self.name(tensor)))),
        }
    }

    /// Returns the values of a stored tensor, which must be finite.
    pub(crate) fn finite(&self, tensor: &str, stored: &StoredTensor) -> Result<Vec<f32>> {
        let (file, name, dtype) = (self.file.path(), self.name(tensor), stored.dtype);
        let Some(view) = View::stored(&[stored.elements()], dtype, stored.data.clone()) else {
            return Err(unpackable(self.file, &name, dtype, "its values are not plain numbers".to_owned()));
        };
        let mut values = vec![0.0; stored.elements()];
        view.read_rounded(0, 0..values.len(), &mut values);
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(block) => {
                let (file, offset) = (file.into(), block * dtype.block_bytes());
                Err(ModelError::BadScale { file, tensor: name, dtype, block, offset }.into())
            }
        }
    }

    /// Checks values of a stored tensor. `expected` describes the right ones.
    pub(crate) fn checked(
        &self,
        tensor: &str,
        numbers: Vec<f32>,
        expected: &str,
        is_right: impl Fn(f32) -> bool,
    ) -> Result<Vec<f32>> {
        match numbers.iter().find(|number| !is_right(**number)) {
            None => Ok(numbers),
            Some(number) => {
                let dtype = self.get(tensor).map_or(DType::F32, |stored| stored.dtype);
                let problem = format!("it has the value {number}, expected {expected}; the file is damaged");
                Err(unpackable(self.file, &self.name(tensor), dtype, problem))
            }
        }
    }

    /// Returns the full name of a tensor.
    pub(crate) fn name(&self, tensor: &str) -> String {
        format!("{}{}{tensor}", self.module, self.joint)
    }

    /// Returns an error about the module's main tensor.
    pub(crate) fn bad(&self, problem: String) -> Error {
        let dtype = self.get(self.main).map_or(DType::U8, |tensor| tensor.dtype);
        unpackable(self.file, &self.name(self.main), dtype, problem)
    }
}

/// Returns an error about a tensor that cannot be decoded.
pub(super) fn unpackable(file: &TensorFile, tensor: &str, dtype: DType, problem: String) -> Error {
    let (file, tensor) = (file.path().into(), tensor.to_owned());
    ModelError::Unpackable { file, tensor, dtype, problem }.into()
}
